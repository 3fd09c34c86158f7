// The data as the rest of the script reads it: forms with their sums, and the tree unfolded.
//
// A form is written once however often it occurs. Here every place in the tree gets a number, in
// preorder, so that what is below place i are the places up to end[i]. Equal subtrees have equal
// lengths: what is at distance d below one place is at distance d below every equal one.

const DATA = JSON.parse(document.getElementById('data').textContent);
const TREE = DATA.tree;
const TENSOR = 0, MODULE = 1, LINK = 2;

/** A column: one number for all rows; or numbers with runs as [number, count]; or, in {d}, steps. */
function column(values, count) {
  const out = new Int32Array(count);
  if (typeof values === 'number') return out.fill(values);
  let at = 0;
  for (const item of values.d || values) {
    if (typeof item === 'number') {
      out[at++] = item;
    } else {
      out.fill(item[0], at, at + item[1]);
      at += item[1];
    }
  }
  if (values.d) for (let k = 1; k < count; k++) out[k] += out[k - 1];
  return out;
}

function columns(table) {
  const out = {count: table.count};
  for (const name of Object.keys(table)) {
    if (name !== 'count' && name !== 'children') out[name] = column(table[name], table.count);
  }
  return out;
}

/** Lists of numbers: where each begins, and all their numbers. */
function lists(table) {
  const lengths = column(table.lengths, table.count);
  const starts = new Int32Array(table.count + 1);
  for (let k = 0; k < table.count; k++) starts[k + 1] = starts[k] + lengths[k];
  return {starts, values: column(table.values, starts[table.count])};
}

const T = columns(TREE.tensors);
const M = columns(TREE.modules);
const CHILDREN = lists(TREE.modules.children);
const NAMES = lists(TREE.nameLists);
for (const table of [T, M]) {
  // A key is the first form of its kind; written is how far before that is.
  for (const key of ['by_layout', 'by_structure']) table[key] = table[key].map((back, form) => form - back);
}

/** Calls back with every child of a module's form: its name and its code. */
function eachChild(form, call) {
  const codes = CHILDREN.starts[form], names = NAMES.starts[M.names[form]];
  const many = CHILDREN.starts[form + 1] - codes;
  for (let k = 0; k < many; k++) call(NAMES.values[names + k], CHILDREN.values[codes + k]);
}

// -- sums of forms ----------------------------------------------------------------------------

const tensorBytes = new Float64Array(T.count);
for (let form = 0; form < T.count; form++) {
  let size = DATA.dtypes[T.dtype[form]][2];
  for (const length of DATA.shapes[T.shape[form]]) size *= length;
  tensorBytes[form] = size;
}

// Forms come children first, so that one pass adds them up.
for (const name of ['size', 'tensors', 'parameters', 'bytes', 'alerts']) {
  M[name] = new Float64Array(M.count);
}
M.byLayout = [];
for (let form = 0; form < M.count; form++) {
  let size = 1, tensors = 0, parameters = 0, bytes = 0, alerts = M.mark[form] >= 0 ? 1 : 0;
  const byLayout = new Map();
  eachChild(form, (name, code) => {
    const kind = code % 3, index = (code - kind) / 3;
    if (kind === MODULE) {
      size += M.size[index];
      tensors += M.tensors[index];
      parameters += M.parameters[index];
      bytes += M.bytes[index];
      alerts += M.alerts[index];
      for (const [layout, sum] of M.byLayout[index]) {
        byLayout.set(layout, (byLayout.get(layout) || 0) + sum);
      }
      return;
    }
    size += 1;
    tensors += 1;
    if (kind === TENSOR) {
      if (T.mark[index] >= 0) alerts += 1;
      // What a comparison found removed is listed, but counts nowhere.
      if (T.kind[index] === 0 && DATA.marks[T.mark[index]] !== 'removed') {
        parameters += 1;
        bytes += tensorBytes[index];
        const layout = T.layout[index];
        byLayout.set(layout, (byLayout.get(layout) || 0) + tensorBytes[index]);
      }
    }
  });
  M.size[form] = size;
  M.tensors[form] = tensors;
  M.parameters[form] = parameters;
  M.bytes[form] = bytes;
  M.alerts[form] = alerts;
  M.byLayout.push(byLayout);
}

// -- the tree, unfolded -----------------------------------------------------------------------

const rootForm = (TREE.root - MODULE) / 3;
const count = M.size[rootForm];
const kindOf = new Uint8Array(count);
const formOf = new Int32Array(count);
const nameOf = new Int32Array(count);  // an index of TREE.names; -1 - n for the number n
const parentOf = new Int32Array(count);
const end = new Int32Array(count);

(function unfold() {
  let next = 0;
  const put = (parent, name, code) => {
    const place = next++;
    kindOf[place] = code % 3;
    formOf[place] = (code - code % 3) / 3;
    nameOf[place] = name;
    parentOf[place] = parent;
    end[place] = place + 1;
    return place;
  };
  // The first time a form is met it is written child by child; later it is copied.
  const first = new Int32Array(M.count).fill(-1);
  const copy = (from, to) => {
    const length = end[from] - from, distance = to - from;
    for (let k = 1; k < length; k++) {
      const source = from + k, place = to + k;
      kindOf[place] = kindOf[source];
      formOf[place] = formOf[source];
      nameOf[place] = nameOf[source];
      parentOf[place] = parentOf[source] + distance;
      end[place] = end[source] + distance;
    }
    next = to + length;
    end[to] = next;
  };
  // Deep models have more levels than calls may nest, so the open modules are a list.
  const open = [];
  const enter = (place) => {
    const form = formOf[place], known = first[form];
    if (known >= 0 && end[known] > known + 1) return copy(known, place);
    first[form] = place;
    const children = [];
    eachChild(form, (name, code) => children.push(name, code));
    open.push({place, children, at: 0});
  };
  enter(put(-1, -1, TREE.root));
  while (open.length) {
    const top = open[open.length - 1];
    if (top.at === top.children.length) {
      end[top.place] = next;
      open.pop();
      continue;
    }
    const place = put(top.place, top.children[top.at], top.children[top.at + 1]);
    top.at += 2;
    if (kindOf[place] === MODULE) enter(place);
  }
})();

// -- what is asked of a place -----------------------------------------------------------------

function nameAt(place) {
  const name = nameOf[place];
  return name < 0 ? String(-1 - name) : TREE.names[name];
}

/** The whole name; a wrapper's part is empty and left out. */
function pathAt(place) {
  const parts = [];
  for (let at = place; at > 0; at = parentOf[at]) {
    const name = nameAt(at);
    if (name !== '') parts.push(name);
  }
  return (DATA.prefix ? [DATA.prefix] : []).concat(parts.reverse()).join('.');
}

/** The place with this name, or -1. */
function placeOf(path) {
  let rest = path;
  if (DATA.prefix) {
    if (path === DATA.prefix) return 0;
    if (!path.startsWith(DATA.prefix + '.')) return -1;
    rest = path.slice(DATA.prefix.length + 1);
  }
  if (rest === '') return 0;
  // A name may have dots in it, and a wrapper has none: several ways may have to be tried.
  const todo = [[0, rest]];
  while (todo.length) {
    const [place, text] = todo.pop();
    for (let child = place + 1; child < end[place]; child = end[child]) {
      const name = nameAt(child);
      if (text === name && name !== '') return child;
      if (kindOf[child] !== MODULE) continue;
      if (name === '') todo.push([child, text]);
      else if (text.startsWith(name + '.')) todo.push([child, text.slice(name.length + 1)]);
    }
  }
  return -1;
}

/** Whether there is anything to show at or below a place. */
function isShown(place) {
  return kindOf[place] !== MODULE || M.tensors[formOf[place]] > 0;
}

function alertsAt(place) {
  const form = formOf[place];
  if (kindOf[place] === MODULE) return M.alerts[form];
  return kindOf[place] === TENSOR && T.mark[form] >= 0 ? 1 : 0;
}

function tokenOf(layout) {
  return layout < 0 ? '-' : DATA.layouts[layout].token;
}

/** What a layout says of one mesh axis: S(dim), R, P, or '' where it is not on that axis. */
function placementOn(layout, axis) {
  if (layout < 0) return '-';
  const found = DATA.layouts[layout];
  const cut = found.cuts.find(([name]) => name === axis);
  if (cut) return `S(${cut[1]})`;
  if (found.partial.includes(axis)) return 'P';
  if (found.axes.length && !found.axes.some(([name]) => name === axis)) return '';
  return 'R';
}

/** The class of a colour: by the dim that is cut, as in every other picture. */
function shadeOf(token) {
  if (token === '-') return 'none';
  const dims = new Set([...token.matchAll(/S\((\d+)\)/g)].map((match) => match[1]));
  if (dims.size === 1) {
    const dim = [...dims][0];
    return dim <= 2 ? `dim${dim}` : 'other';
  }
  return dims.size || token.includes('P') || token === 'mixed' ? 'other' : token === '' ? 'off' : 'whole';
}

/** The position of a rank on the axes of a layout's mesh; null where ranks are not known. */
function positionOf(layout, rank) {
  const axes = DATA.layouts[layout].axes;
  if (!axes.length) return null;
  if (!DATA.mesh) return rank === 0 ? Object.fromEntries(axes.map(([axis]) => [axis, 0])) : null;
  const order = DATA.mesh.ranks[DATA.layouts[layout].view];
  let rest = order ? order.indexOf(rank) : rank;
  const position = {};
  for (let k = axes.length - 1; k >= 0; k--) {
    const [axis, size] = axes[k];
    position[axis] = rest % size;
    rest = Math.floor(rest / size);
  }
  return position;
}

/** What is held at a position: first index and one past the last of every dim (torch's chunks). */
function rangesAt(shape, layout, position) {
  const ranges = shape.map((size) => [0, size]);
  if (layout < 0) return ranges;
  const {axes, cuts} = DATA.layouts[layout];
  for (const [axis, dim] of cuts) {
    const found = axes.find(([name]) => name === axis);
    if (!found || !ranges[dim]) return null;
    const [start, stop] = ranges[dim], size = stop - start;
    const piece = Math.ceil(size / found[1]), index = position[axis];
    ranges[dim] = [start + Math.min(index * piece, size), start + Math.min((index + 1) * piece, size)];
  }
  return ranges;
}

/** The shape that a rank holds of a tensor's form; null where it is not known or the whole. */
function localShape(form, rank) {
  const layout = T.layout[form];
  if (layout < 0 || !DATA.layouts[layout].cuts.length) return null;
  const position = positionOf(layout, rank);
  if (!position) return null;
  const ranges = rangesAt(DATA.shapes[T.shape[form]], layout, position);
  return ranges && ranges.map(([start, stop]) => stop - start);
}

// -- words ------------------------------------------------------------------------------------

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ',');
}

function counted(number, word) {
  return `${grouped(number)} ${word}${number === 1 ? '' : 's'}`;
}

function bytesText(number) {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let size = number, unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit++; }
  if (unit === 0) return `${number} bytes`;
  const [whole, rest] = size.toFixed(1).split('.');
  return `${grouped(whole)}.${rest} ${units[unit]}`;
}

function shapeText(shape) {
  return `[${shape.join(', ')}]`;
}

/** The text with everything that ends a line or turns the writing as a visible escape. */
function printable(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
    (char) => {
      const code = char.charCodeAt(0);
      const short = {'\n': '\\n', '\r': '\\r', '\t': '\\t'}[char];
      return short || (code < 256 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u${code.toString(16).padStart(4, '0')}`);
    });
}

/** Numbers with runs joined: 0-29,31-57. */
function numberText(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b), out = [];
  for (let k = 0; k < sorted.length; k++) {
    const from = sorted[k];
    while (k + 1 < sorted.length && sorted[k + 1] === sorted[k] + 1) k++;
    out.push(from === sorted[k] ? `${from}` : `${from}-${sorted[k]}`);
  }
  return out.join(',');
}
