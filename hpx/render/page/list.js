// The list: only the rows that are in sight are elements.

const ROW_HEIGHT = 26;
const BEYOND = 8;  // rows above and below what is in sight

const byId = (id) => document.getElementById(id);
const tree = byId('tree'), scroll = byId('scroll');
const elements = new Map();  // by the index of the row

/** An element with a class, a text and children; text is never read as markup. */
function make(tag, className = '', text = '', ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== '') element.textContent = text;
  element.append(...children);
  return element;
}

const HAS_CLASSES = TREE.classes.some((name) => name);

/** A layout's token; coloured by what it says, unless colours tell something else. */
function tokenChip(token) {
  const shade = shadeOf(token);
  const plain = state.colorBy !== 'layout' && !['none', 'off'].includes(shade);
  return make('span', `token ${plain ? 'whole' : shade}`, token === '' ? 'other mesh' : token);
}

/** A word of a column: coloured by its place among the others, if colours tell of this column. */
function kindChip(by, name, counts) {
  if (state.colorBy !== by || !name) return name;
  const place = counts.findIndex(([one]) => one === name);
  return make('span', `token ${place < 0 ? 'whole' : `kind${Math.min(place, 5)}`}`, printable(name));
}

const SCALE_STEPS = 5;
let largestRow = 0;  // the most bytes of a row that is listed

/** Bytes; coloured from little to much, each step a quarter of the one above. */
function bytesChip(bytes) {
  const text = bytesText(bytes);
  if (state.colorBy !== 'bytes') return text;
  let step = SCALE_STEPS - 1;
  for (let bound = largestRow; step > 0 && bytes * 4 <= bound; bound /= 4) step--;
  return make('span', `token scale${step}`, text);
}

function bar(shares) {
  const total = shares.reduce((sum, [, bytes]) => sum + bytes, 0);
  const box = make('span', 'bar');
  box.title = shares.map(([token, bytes]) =>
    `${token || 'other mesh'}: ${bytesText(bytes)}, ${(100 * bytes / total).toFixed(1)}%`).join('\n');
  for (const [token, bytes] of shares) {
    const part = make('span', shadeOf(token));
    part.style.width = `${100 * bytes / total}%`;
    box.append(part);
  }
  return total ? box : '';
}

const MARK_TEXTS = {
  unset: '⚠ no layout', conflict: '⚠ conflict', deviates: '⚠ unlike its siblings',
  added: '+ added', removed: '− removed', changed: '~ changed',
};

function markOf(name) {
  return make('span', `mark ${name}`, MARK_TEXTS[name]);
}

function nameCell(row, facts) {
  const cell = make('span', 'name');
  cell.style.paddingInlineStart = `${Math.min(row.depth, 24) * 16}px`;
  const twisty = make('span', 'twisty', facts.kind === MODULE ? (isOpen(row) ? '▾' : '▸') : '');
  twisty.setAttribute('aria-hidden', 'true');
  const label = make('span', 'label', printable(row.label));
  label.title = printable(pathAt(row.rep));
  cell.append(twisty, label);
  if (row.members > 1) cell.append(make('span', 'times', `×${grouped(row.members)}`));
  if (facts.kind === MODULE && TREE.classes[M.cls[facts.form]]) {
    cell.append(make('span', 'class', printable(TREE.classes[M.cls[facts.form]].split('.').pop())));
  }
  if (facts.kind === TENSOR && T.experts[facts.form] >= 0) {
    cell.append(make('span', 'badge', `E=${T.experts[facts.form]}`));
  }
  if (facts.kind === TENSOR && T.aliases[facts.form] >= 0) {
    const badge = make('span', 'badge', 'tied');
    badge.title = printable(DATA.aliases[T.aliases[facts.form]].join('\n'));
    cell.append(badge);
  }
  if (facts.mark) cell.append(markOf(facts.mark));
  else if (facts.alert && !matched) cell.append(DATA.comparison.length ? make('span', 'mark inside changed', 'changes inside') : make('span', 'mark inside', '⚠ inside'));
  else if (facts.warned) cell.append(make('span', 'mark warned', 'warned'));
  return cell;
}

/** The cells of a row after its name, by the columns that there are. */
const COLUMNS = [
  ['shape', 'Shape', (row, facts) => facts.kind === TENSOR ? shapeText(DATA.shapes[T.shape[facts.form]])
    : facts.kind === MODULE ? counted(facts.parameters, 'parameter') : ''],
  ['dtype', 'Dtype', (row, facts) => {
    if (facts.kind !== TENSOR) return '';
    const box = make('span'), frozen = !T.trained[facts.form] && T.kind[facts.form] === 0;
    box.append(kindChip('dtype', DATA.dtypes[T.dtype[facts.form]][1], DATA.dtypeCounts), frozen ? ' frozen' : '');
    return box;
  }],
  ['layout', 'Layout', (row, facts) => {
    if (facts.kind === TENSOR && facts.mark === 'removed') return '';
    if (facts.kind === TENSOR) return T.kind[facts.form] === 0 ? tokenChip(tokenOfRow(row)) : DATA.kinds[T.kind[facts.form]];
    return facts.kind === MODULE && state.colorBy === 'layout' ? bar(sharesOfRow(row)) : '';
  }],
  ['local', 'On the rank', (row, facts) => {
    if (facts.kind !== TENSOR || facts.forms.some((form) => T.layout[form] !== T.layout[facts.form])) return '';
    const local = localShape(facts.form, state.rank);
    return local ? shapeText(local) : '';
  }],
  ['bytes', 'Bytes', (row, facts) => facts.kind === TENSOR
    ? bytesChip(row.count * tensorBytes[facts.form])
    : facts.kind === MODULE ? bytesText(facts.bytes) : ''],
  ['pass', 'Decided by', (row, facts) => {
    if (facts.kind !== TENSOR) return '';
    const passes = new Set(facts.forms.map((form) => T.decided[form]).filter((pass) => pass >= 0));
    const text = [...passes].map((pass) => DATA.passes[pass]).join(', ');
    return passes.size === 1 ? kindChip('pass', text, DATA.passCounts) : text;
  }],
].filter(([name]) => DATA.layoutsKnown || !['layout', 'local', 'pass'].includes(name))
  .filter(([name]) => name !== 'pass' || DATA.passes.length)
  .filter(([name]) => name !== 'local' || DATA.layouts.some((layout) => layout.axes.length));

function fill(element, row) {
  const facts = factsOf(row);
  element.id = `row-${row.index}`;
  element.className = `row ${['tensor', 'module', 'link'][facts.kind]}`;
  if (facts.mark) element.classList.add('marked', facts.mark);
  element.style.transform = `translateY(${row.index * ROW_HEIGHT}px)`;
  element.setAttribute('role', 'treeitem');
  element.setAttribute('aria-level', row.depth + 1);
  element.setAttribute('aria-setsize', row.siblings);
  element.setAttribute('aria-posinset', row.position);
  if (facts.kind === MODULE) element.setAttribute('aria-expanded', isOpen(row));
  else element.removeAttribute('aria-expanded');
  const chosen = state.selected === row.rep;
  element.setAttribute('aria-selected', chosen);
  element.classList.toggle('chosen', chosen);
  const cells = [nameCell(row, facts)];
  if (facts.kind === LINK) {
    const target = make('span', 'cell target', `= ${printable(TREE.links[facts.form][0])}`);
    cells.push(target);
  } else {
    for (const [name, , value] of COLUMNS) {
      const content = value(row, facts);
      const cell = make('span', `cell ${name}`);
      cell.append(typeof content === 'string' ? printable(content) : content);
      cells.push(cell);
    }
  }
  element.replaceChildren(...cells);
}

/** What the heads of the columns leave; they stay on top. */
function heightInSight() {
  return scroll.clientHeight - byId('columns').offsetHeight;
}

/** Make the elements of the rows in sight, and no others. */
function draw() {
  const top = scroll.scrollTop;
  const from = Math.max(0, Math.floor(top / ROW_HEIGHT) - BEYOND);
  const to = Math.min(rows.length, Math.ceil((top + heightInSight()) / ROW_HEIGHT) + BEYOND);
  for (const [index, element] of elements) {
    if (index >= from && index < to) continue;
    element.remove();
    elements.delete(index);
  }
  let before = null;
  for (let index = from; index < to; index++) {
    let element = elements.get(index);
    if (!element) {
      element = make('div');
      fill(element, rows[index]);
      elements.set(index, element);
      // In order, so that what reads the page aloud reads the rows in order.
      if (before) before.after(element);
      else tree.prepend(element);
    }
    before = element;
  }
}

/** List the rows anew and draw them. */
function redraw() {
  for (const element of elements.values()) element.remove();
  elements.clear();
  list();
  measure();
  tree.style.height = `${rows.length * ROW_HEIGHT}px`;
  draw();
  const chosen = chosenRow();
  if (chosen) tree.setAttribute('aria-activedescendant', `row-${chosen.index}`);
  else tree.removeAttribute('aria-activedescendant');
  byId('nothing')?.remove();
  if (!rows.length) {
    const empty = make('p', '', state.query ? 'Nothing matches.' : 'There are no parameters.');
    empty.id = 'nothing';
    scroll.append(empty);
  }
}

/** Measure the rows: the column of names is as wide as the longest needs, within limits. */
function measure() {
  let longest = 0;
  largestRow = 0;
  for (const row of rows) {
    longest = Math.max(longest, 2.2 * row.depth + row.label.length);
    if (kindOf[row.rep] === TENSOR) largestRow = Math.max(largestRow, row.count * tensorBytes[formOf[row.rep]]);
  }
  byId('table').style.setProperty('--name', `${Math.min(90, Math.ceil(longest) + 24)}ch`);
}

function chosenRow() {
  return state.selected === null ? null : rows.find((row) => row.rep === state.selected) || null;
}

/** Choose a row and bring it into sight. */
function choose(row) {
  const before = chosenRow();
  state.selected = row.rep;
  for (const one of [before, row]) {
    const element = one && elements.get(one.index);
    if (element) fill(element, one);
  }
  const top = row.index * ROW_HEIGHT, height = heightInSight();
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  else if (top + ROW_HEIGHT > scroll.scrollTop + height) scroll.scrollTop = top + ROW_HEIGHT - height;
  draw();
  tree.setAttribute('aria-activedescendant', `row-${row.index}`);
}

function toggle(row) {
  if (kindOf[row.rep] !== MODULE) return;
  if (!opened.delete(row.rep)) opened.add(row.rep);
  redraw();
}

/** The heads of the columns, as wide as what stands below them. */
function drawColumns() {
  const widths = {
    shape: Math.max(18, ...DATA.shapes.map((shape) => shapeText(shape).length)),
    dtype: Math.max(5, ...DATA.dtypes.map((dtype) => dtype[1].length)) + (T.trained.every((is) => is) ? 0 : 7),
    layout: Math.max(11, ...DATA.layouts.map((layout) => layout.token.length)),
    local: 13, bytes: 11,
    pass: Math.max(10, ...DATA.passes.map((pass) => pass.length + 2)),
  };
  for (let form = 0; form < T.count; form++) {
    const local = T.layout[form] < 0 ? null : localShape(form, state.rank);
    if (local) widths.local = Math.max(widths.local, shapeText(local).length);
  }
  const tracks = COLUMNS.map(([name]) => `${Math.min(widths[name], 30) + 1}ch`);
  byId('table').style.setProperty('--columns', `minmax(16rem, var(--name)) ${tracks.join(' ')}`);
  const least = COLUMNS.reduce((sum, [name]) => sum + Math.min(widths[name], 30) + 1, 0);
  byId('table').style.setProperty('--least', `calc(16rem + ${least}ch + ${12 * COLUMNS.length + 48}px)`);
  const heads = COLUMNS.map(([name, title]) => {
    const text = name === 'layout' && state.axis ? `On ${state.axis}`
      : name === 'local' ? `On rank ${state.rank}` : title;
    return make('span', `cell ${name}`, text);
  });
  byId('columns').replaceChildren(make('span', 'name', 'Name'), ...heads);
}
