// Begin: draw everything, and answer to what the reader does.

const searchBox = byId('search');

function say(text) {
  byId('said').textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { byId('said').textContent = ''; }, 4000);
}

/** How many rows there are, and how much a search has found. */
function drawCount(found) {
  const unique = M.parameters[rootForm];
  byId('count').dataset.query = state.query;
  byId('count').textContent = state.query
    ? `${counted(found, 'name')} found, ${counted(rows.length, 'row')}`
    : `${counted(rows.length, 'row')} for ${counted(unique, 'parameter')}`;
}

let lastFound = 0;

function startSearch(query) {
  searchBox.value = query;
  runSearch();
}

function runSearch() {
  lastFound = search(searchBox.value);
  scroll.scrollTop = 0;
  redraw();
  drawCount(lastFound);
}

let searching = 0;
searchBox.addEventListener('input', () => {
  clearTimeout(searching);
  searching = setTimeout(runSearch, 80);
});

/** Show the row of a name, and its details; a search that hides it ends. */
function goTo(path) {
  const place = placeOf(path);
  if (place < 0) return say(`There is no ${printable(path)}`);
  if (matched && !matched[place]) startSearch('');
  const row = reveal(place);
  redraw();
  drawCount(lastFound);
  if (!row) return;
  const shown = rows.find((one) => one.rep === row.rep);
  choose(shown);
  scroll.scrollTop = Math.max(0, shown.index * ROW_HEIGHT - heightInSight() / 3);
  draw();
  showPanel(shown, Math.max(0, placesOf(shown).indexOf(place)));
}

function rowAt(event) {
  const element = event.target.closest('.row');
  return element ? rows[Number(element.id.slice(4))] : null;
}

tree.addEventListener('click', (event) => {
  const row = rowAt(event);
  if (!row) return;
  if (kindOf[row.rep] === LINK && event.target.closest('.target')) return goTo(TREE.links[formOf[row.rep]][0]);
  choose(row);
  if (event.target.closest('.twisty')) { toggle(row); drawCount(lastFound); }
  else if (kindOf[row.rep] === MODULE && !event.target.closest('.label')) showPanel(row);
  else if (kindOf[row.rep] === MODULE) { toggle(row); drawCount(lastFound); if (!panel.hidden) showPanel(row); }
  else showPanel(row);
});

const KEYS = {
  ArrowDown: (row) => rows[row ? row.index + 1 : 0],
  ArrowUp: (row) => rows[row ? row.index - 1 : 0],
  Home: () => rows[0],
  End: () => rows[rows.length - 1],
  PageDown: (row) => rows[Math.min(rows.length - 1, (row ? row.index : 0) + pageOf())],
  PageUp: (row) => rows[Math.max(0, (row ? row.index : 0) - pageOf())],
  ArrowRight: (row) => {
    if (!row || kindOf[row.rep] !== MODULE) return null;
    if (isOpen(row)) return rows[row.index + 1];
    toggle(row);
    return rows[row.index];
  },
  ArrowLeft: (row) => {
    if (!row) return null;
    if (isOpen(row)) { toggle(row); return rows[row.index]; }
    return row.parent ? rows.find((one) => one.rep === row.parent.rep) : null;
  },
};

function pageOf() {
  return Math.max(1, Math.floor(heightInSight() / ROW_HEIGHT) - 1);
}

tree.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const row = chosenRow();
  if (event.key === 'Enter' && row) {
    showPanel(row);
  } else if (event.key === ' ' && row) {
    toggle(row);
    drawCount(lastFound);
  } else if (event.key === 'c' && row) {
    copyPath(shownPlace >= 0 ? shownPlace : row.rep);
  } else if (KEYS[event.key]) {
    const next = KEYS[event.key](row);
    if (next) choose(next);
    drawCount(lastFound);
  } else {
    return;
  }
  event.preventDefault();
});

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest('input, select, textarea');
  if (event.key === '/' && !typing) {
    searchBox.focus();
    searchBox.select();
    event.preventDefault();
  } else if (event.key === 'Escape') {
    if (event.target === searchBox && searchBox.value) startSearch('');
    else if (!panel.hidden) { hidePanel(); tree.focus(); }
    else if (searchBox.value) startSearch('');
    if (event.target === searchBox) tree.focus();
  } else if ((event.key === 'Enter' || event.key === 'ArrowDown') && event.target === searchBox) {
    clearTimeout(searching);
    runSearch();
    tree.focus();
    if (rows.length) choose(rows.find((row) => kindOf[row.rep] !== MODULE) || rows[0]);
    event.preventDefault();
  }
});

byId('fold').addEventListener('change', (event) => {
  const place = shownPlace >= 0 ? shownPlace : state.selected;
  state.fold = event.target.value;
  refold();
  if (state.query) runSearch();
  const row = place === null || place < 0 ? null : reveal(place);
  redraw();
  drawCount(lastFound);
  if (row) choose(rows.find((one) => one.rep === row.rep));
});

byId('sort').addEventListener('change', (event) => {
  state.sort = event.target.value;
  refold();
  redraw();
});

byId('axis').addEventListener('change', (event) => {
  state.axis = event.target.value;
  drawColumns();
  redraw();
});

byId('rank').addEventListener('change', (event) => {
  const wanted = Math.trunc(Number(event.target.value)) || 0;
  state.rank = Math.min(Math.max(0, wanted), (DATA.mesh ? DATA.mesh.size : 1) - 1);
  event.target.value = state.rank;
  drawColumns();
  redraw();
  const row = chosenRow();
  if (row && shownPlace >= 0) showPanel(row, Math.max(0, placesOf(row).indexOf(shownPlace)));
});

byId('expand').addEventListener('click', () => {
  if (!openAll(MOST_ROWS)) say(`Only some ${grouped(MOST_ROWS)} rows are open`);
  redraw();
  drawCount(lastFound);
});

byId('collapse').addEventListener('click', () => {
  opened.clear();
  scroll.scrollTop = 0;
  redraw();
  drawCount(lastFound);
});

let drawing = 0;
scroll.addEventListener('scroll', () => {
  if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; draw(); });
}, {passive: true});
new ResizeObserver(draw).observe(scroll);

/** Only what there is something to say about. */
function drawBar() {
  byId('fold').value = state.fold;
  byId('sort').value = state.sort;
  const axes = new Map();
  if (DATA.mesh) for (const view of Object.values(DATA.mesh.views)) for (const [axis, size] of view) axes.set(axis, size);
  for (const layout of DATA.layouts) for (const [axis, size] of layout.axes) axes.set(axis, size);
  const choice = byId('axis');
  choice.append(new Option('all', ''));
  for (const [axis, size] of axes) choice.append(new Option(`${axis} (${grouped(size)})`, axis));
  byId('axis-label').hidden = !DATA.layoutsKnown || axes.size === 0;
  byId('rank-label').hidden = !DATA.layoutsKnown || !DATA.mesh;
  byId('rank').value = state.rank;
  if (DATA.mesh) byId('rank').max = DATA.mesh.size - 1;
  if (axes.has(DATA.axis)) choice.value = state.axis = DATA.axis;
}

drawHead();
drawBar();
drawColumns();
drawLegend();
openSome(ROOMY);
redraw();
drawCount(0);
performance.mark('rows');  // of how long it took until there is something to read
