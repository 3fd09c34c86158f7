// The panel beside the list: everything that is known of one place.

const panel = byId('panel');
const MOST_PIECES = 16;
let shownPlace = -1;

// What the problems say of a name.
const FINDINGS = new Map();
for (const [level, text, , places] of DATA.findings) {
  for (const path of places) if (level !== 'info') FINDINGS.set(path, text);
}

function hidePanel() {
  panel.hidden = true;
  shownPlace = -1;
}

/** Show what a row stands for, beginning with its first place. */
function showPanel(row, nth = 0) {
  const places = placesOf(row);
  shownPlace = places[nth];
  const kind = kindOf[shownPlace];
  const what = kind === MODULE ? 'Module' : kind === LINK ? 'Further name'
    : capital(DATA.kinds[T.kind[formOf[shownPlace]]]);
  const parts = [panelHead(what), pathPart(shownPlace)];
  if (places.length > 1) parts.push(stepper(row, nth, places.length));
  if (kind === MODULE) parts.push(...moduleParts(shownPlace));
  else if (kind === LINK) parts.push(...linkParts(shownPlace));
  else parts.push(...tensorParts(shownPlace));
  openPanel(parts);
}

function openPanel(parts) {
  panel.replaceChildren(...parts);
  panel.hidden = false;
  panel.scrollTop = 0;
}

function panelHead(title) {
  const head = make('div', 'head');
  const close = make('button', 'close', '×');
  close.type = 'button';
  close.setAttribute('aria-label', 'Close');
  close.addEventListener('click', () => { hidePanel(); tree.focus(); });
  head.append(make('h2', '', title), close);
  return head;
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

function pathPart(place) {
  const box = make('div', 'path');
  box.append(make('code', '', printable(pathAt(place)) || '(the model)'));
  const button = make('button', 'copy', 'Copy');
  button.type = 'button';
  button.title = 'Copy the name (c)';
  button.addEventListener('click', () => copyPath(place));
  box.append(button);
  return box;
}

/** Which of the equal ones is shown. */
function stepper(row, nth, size) {
  const box = make('div', 'stepper');
  const step = (text, to, label) => {
    const button = make('button', '', text);
    button.type = 'button';
    button.disabled = to < 0 || to >= size;
    button.setAttribute('aria-label', label);
    button.addEventListener('click', () => {
      showPanel(row, to);
      panel.querySelector(`.stepper [aria-label="${label}"]`).focus();
    });
    return button;
  };
  box.append(step('◂', nth - 1, 'The one before'),
    make('span', '', `${grouped(nth + 1)} of ${grouped(size)} equal ones`),
    step('▸', nth + 1, 'The next one'));
  return box;
}

/** A list of words and what they say; empty ones are left out. */
function pairs(items) {
  const box = make('dl');
  for (const [word, value] of items) {
    if (value === '' || value === null || value === undefined) continue;
    const said = make('dd');
    said.append(typeof value === 'string' ? printable(value) : value);
    box.append(make('dt', '', word), said);
  }
  return box;
}

function section(title, ...content) {
  const box = make('section');
  box.append(make('h3', '', title), ...content);
  return box;
}

function names(list, most = 12) {
  const box = make('ul', 'names');
  for (const name of list.slice(0, most)) {
    const item = make('li');
    item.append(placeButton(name));
    box.append(item);
  }
  if (list.length > most) box.append(make('li', 'more', `and ${counted(list.length - most, 'more name')}`));
  return box;
}

/** A name that leads to its row. */
function placeButton(path) {
  const button = make('button', 'goto', printable(path));
  button.type = 'button';
  button.addEventListener('click', () => goTo(path));
  return button;
}

function tensorParts(place) {
  const form = formOf[place], shape = DATA.shapes[T.shape[form]], layout = T.layout[form];
  const dtype = DATA.dtypes[T.dtype[form]], parameter = T.kind[form] === 0;
  const owner = TREE.classes[M.cls[formOf[parentOf[place]]]];
  const local = localShape(form, state.rank);
  const elements = shape.reduce((product, size) => product * size, 1);
  const aliases = T.aliases[form] < 0 ? [] : DATA.aliases[T.aliases[form]];
  const mark = T.mark[form] >= 0 ? markOf(DATA.marks[T.mark[form]]) : '';
  const parts = [pairs([
    ['Stands out', mark],
    ['Problem', FINDINGS.get(pathAt(place))],
    ['Was', T.was[form] >= 0 ? DATA.was[T.was[form]] : ''],
    ['In', owner],
    ['Shape', shapeText(shape)],
    [`On rank ${state.rank}`, local ? shapeText(local) : ''],
    ['Dtype', dtype[0]],
    ['Elements', grouped(elements)],
    ['Bytes', bytesText(tensorBytes[form])],
    [`Bytes on rank ${state.rank}`, local ? bytesText(local.reduce((p, n) => p * n, 1) * dtype[2]) : ''],
    ['Trained', parameter ? (T.trained[form] ? 'yes' : 'no, frozen') : ''],
    ['Stacked experts', T.experts[form] >= 0 ? grouped(T.experts[form]) : ''],
    ['Computed as', T.lineage[form] >= 0 ? DATA.lineages[T.lineage[form]] : ''],
    ['Gradient', T.reduce[form] >= 0 ? `must be summed over ${DATA.reduces[T.reduce[form]].join(', ')}` : ''],
  ])];
  if (aliases.length) parts.push(section('One tensor with these names too', names(aliases)));
  if (parameter && DATA.layoutsKnown && DATA.marks[T.mark[form]] !== 'removed') {
    parts.push(section('Layout', ...layoutParts(form)));
    if (layout >= 0 && DATA.layouts[layout].cuts.length) parts.push(piecesPart(form));
  }
  parts.push(...historyParts(T.history[form]));
  return parts;
}

function layoutParts(form) {
  const layout = T.layout[form];
  if (layout < 0) return [make('p', '', 'No pass gave it one.')];
  const found = DATA.layouts[layout], parts = [tokenChip(found.token)];
  if (found.view) parts.push(make('span', 'quiet', ` on the ${found.view} mesh`));
  if (found.axes.length) {
    const table = make('table');
    table.append(rowOf('th', 'Axis', 'Size', 'Placement'));
    for (const [axis, size] of found.axes) {
      const line = rowOf('td', axis, grouped(size));
      const cell = make('td');
      cell.append(tokenChip(placementOn(layout, axis)));
      line.append(cell);
      table.append(line);
    }
    parts.push(table);
  }
  const decided = T.decided[form] >= 0 ? DATA.passes[T.decided[form]] : '';
  const rule = T.rule[form] >= 0 ? RULES.get(T.rule[form]) : null;
  parts.push(pairs([
    ['Decided by', decided],
    ['Rule', rule ? rule[1] : ''],
    ['Because', rule ? rule[3] : ''],
  ]));
  return parts;
}

function rowOf(tag, ...texts) {
  const line = make('tr');
  for (const text of texts) line.append(make(tag, '', text));
  return line;
}

/** What the ranks hold, by their position on the axes that cut. */
function piecesPart(form) {
  const shape = DATA.shapes[T.shape[form]], layout = T.layout[form];
  const {axes, cuts} = DATA.layouts[layout];
  const cutting = axes.filter(([axis]) => cuts.some(([name]) => name === axis));
  const size = cutting.reduce((product, [, n]) => product * n, 1);
  if (!cutting.length) return make('span');
  const table = make('table', 'pieces');
  table.append(rowOf('th', ...cutting.map(([axis]) => axis), 'Indices'));
  const at = (index) => {
    const position = {};
    for (let k = cutting.length - 1; k >= 0; k--) {
      position[cutting[k][0]] = index % cutting[k][1];
      index = Math.floor(index / cutting[k][1]);
    }
    return position;
  };
  const mine = positionOf(layout, state.rank);
  const add = (index) => {
    const position = at(index), ranges = rangesAt(shape, layout, position);
    const empty = ranges.some(([start, stop]) => start === stop);
    const text = `[${ranges.map(([start, stop]) => `${start}:${stop}`).join(', ')}]${empty ? ' (empty)' : ''}`;
    const line = rowOf('td', ...cutting.map(([axis]) => String(position[axis])), text);
    if (mine && cutting.every(([axis]) => mine[axis] === position[axis])) {
      line.classList.add('mine');
      line.lastChild.append(make('span', 'quiet', `  rank ${state.rank}`));
    }
    table.append(line);
  };
  const shown = size <= MOST_PIECES ? size : MOST_PIECES - 1;
  for (let index = 0; index < shown; index++) add(index);
  if (shown < size) {
    const more = size - shown - 1;
    if (more) {
      const line = rowOf('td', `… ${grouped(more)} more; choose a rank above`);
      line.firstChild.colSpan = cutting.length + 1;
      table.append(line);
    }
    add(size - 1);
  }
  const mineShown = table.querySelector('.mine');
  if (mine && !mineShown) add(cutting.reduce((index, [axis, n]) => index * n + mine[axis], 0));
  return section(`What ranks hold (${grouped(size)} pieces)`, table);
}

function moduleParts(place) {
  const form = formOf[place];
  const shares = [...M.byLayout[form]].sort((a, b) => b[1] - a[1]);
  const parts = [pairs([
    ['Problem', FINDINGS.get(pathAt(place))],
    ['Class', TREE.classes[M.cls[form]]],
    ['Parameters', grouped(M.parameters[form])],
    ['Bytes', bytesText(M.bytes[form])],
    ['Stands out', M.alerts[form] > 0 ? counted(M.alerts[form], 'place') + ' in it' : ''],
  ])];
  if (M.notes[form] >= 0) {
    const list = make('ul');
    for (const note of DATA.notes[M.notes[form]]) list.append(make('li', '', printable(note)));
    parts.push(section('Numbers that passes changed', list));
  }
  if (DATA.layoutsKnown && shares.length) {
    const table = make('table');
    table.append(rowOf('th', 'Layout', 'Bytes', 'Share'));
    for (const [layout, bytes] of shares) {
      const line = make('tr'), cell = make('td');
      cell.append(tokenChip(tokenOf(layout)));
      line.append(cell, make('td', '', bytesText(bytes)), make('td', '', `${(100 * bytes / (M.bytes[form] || 1)).toFixed(1)}%`));
      table.append(line);
    }
    parts.push(section('Bytes by layout', table));
  }
  parts.push(...historyParts(M.history[form]));
  return parts;
}

function linkParts(place) {
  const [path, isTensor] = TREE.links[formOf[place]];
  const what = isTensor ? 'This is the same tensor as' : 'This is the same module as';
  return [section(what, names([path]))];
}

/** The events about it, in order; those that a later one replaced stay, and say so. */
function historyParts(history) {
  if (!DATA.histories.length) return [];
  const seqs = history < 0 ? [] : DATA.histories[history];
  if (!seqs.length) return [section('History', make('p', '', 'No pass did anything to it.'))];
  const inherited = new Set(DATA.inherited[history]);
  const last = new Map();
  for (const number of seqs) {
    const [, , , kind, key] = DATA.events[number];
    if (kind === 'set' && !inherited.has(number)) last.set(key, number);
  }
  const list = make('ol', 'history');
  for (const number of seqs) {
    const [seq, step, pass, kind, key, text, why, rule] = DATA.events[number];
    const item = make('li', kind);
    item.append(make('span', 'step', `step ${step}`), make('strong', '', printable(pass)),
      make('span', 'what', printable(text)));
    if (inherited.has(number)) {
      item.classList.add('inherited');
      item.append(make('span', 'badge', 'what it is made of'));
    } else if (kind === 'set' && last.get(key) !== number) {
      item.classList.add('overridden');
      const by = DATA.events[last.get(key)];
      item.append(make('span', 'badge', `overridden in step ${by[1]} by ${printable(by[2])}`));
    }
    if (kind === 'skip' && rule) item.append(make('span', 'badge', 'lost'));
    if (why) item.append(make('p', 'why', printable(why)));
    if (rule) item.append(make('p', 'rule', printable(rule)));
    item.title = `event ${seq}`;
    list.append(item);
  }
  return [section('History', list)];
}

async function copyPath(place) {
  const path = pathAt(place);
  try {
    await navigator.clipboard.writeText(path);
  } catch {
    // Older browsers, or a page that may not use the clipboard: by way of a selection.
    const box = make('textarea', 'away', path);
    document.body.append(box);
    box.select();
    const done = document.execCommand('copy');
    box.remove();
    if (!done) return say('The browser does not allow copying');
  }
  say(`Copied ${printable(path)}`);
}
