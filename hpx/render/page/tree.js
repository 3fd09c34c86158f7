// Which rows there are: folding of equal siblings, what is open, what a search leaves.
//
// A row stands for equal places. `rep` is the first of them; `members` are those below one parent;
// `count` is how many there are in the whole model. The rows follow the same rules as the text:
// numbered siblings of equal keys are one row, a module that holds nothing but a few tensors is
// rows of the one above, chains of single children are one row.

const FLAT = 6;           // a module of at most so many tensors and nothing else is rows, not a row
const MOST_VARIANTS = 4;  // a list of at most so many variants and nothing else is no row
const ROOMY = 60;         // rows that are opened at first
const MOST_ROWS = 500000;   // browsers cannot scroll through higher lists
const FOUND_ROOMY = 300;  // and of a search

const state = {
  fold: DATA.fold,
  axis: '',
  rank: DATA.rank,
  sort: DATA.sort,
  colorBy: DATA.colorBy,
  query: '',
  selected: null,
};

const RULES = new Map(DATA.rules.map((rule) => [rule[0], rule]));

let matched = null;        // of a search: 1 for every place that it leaves
let signature = null;      // of a search: equal for places of which it leaves the same
let opened = new Set();    // places whose row is open
let openedBefore = null;   // the same, before a search began
let rows = [];             // what is listed, in order

// -- search -----------------------------------------------------------------------------------

let lowerPaths = null;

function pathsInLowerCase() {
  if (lowerPaths) return lowerPaths;
  lowerPaths = new Array(count);
  const prefix = DATA.prefix ? DATA.prefix.toLowerCase() : '';
  lowerPaths[0] = prefix;
  const lower = TREE.names.map((name) => name.toLowerCase());
  for (let place = 1; place < count; place++) {
    const above = lowerPaths[parentOf[place]];
    const number = nameOf[place];
    const name = number < 0 ? String(-1 - number) : lower[number];
    lowerPaths[place] = above && name ? `${above}.${name}` : above || name;
  }
  return lowerPaths;
}

/** What a search may find in a tensor besides its name, by field. */
function fieldsOf(form) {
  const dtype = DATA.dtypes[T.dtype[form]];
  const words = [DATA.kinds[T.kind[form]]];
  if (T.mark[form] >= 0) words.push(DATA.marks[T.mark[form]]);
  if (T.warned[form]) words.push('warned');
  if (T.aliases[form] >= 0) words.push('tied', ...DATA.aliases[T.aliases[form]]);
  if (!T.trained[form] && T.kind[form] === 0) words.push('frozen');
  return {
    layout: DATA.layoutsKnown && T.kind[form] === 0 ? tokenOf(T.layout[form]).toLowerCase() : '',
    dtype: `${dtype[0]} ${dtype[1]}`.toLowerCase(),
    pass: T.decided[form] < 0 ? '' : DATA.passes[T.decided[form]].toLowerCase(),
    rule: T.rule[form] < 0 ? '' : RULES.get(T.rule[form])[1].toLowerCase(),
    shape: shapeText(DATA.shapes[T.shape[form]]),
    is: words.join(' ').toLowerCase(),
  };
}

let fieldsCache = null;

/** Words between spaces, all of which have to be there; `layout:R` is exactly that layout. */
function terms(query) {
  return (query.toLowerCase().match(/(?:[a-z]+:)?"[^"]*"|\S+/g) || []).map((word) => {
    const field = /^(path|layout|dtype|pass|rule|shape|is):(.+)$/.exec(word);
    const text = (field ? field[2] : word).replace(/^"(.*)"$/, '$1');
    return {field: field ? field[1] : '', text};
  }).filter((term) => term.text);
}

function search(query) {
  state.query = query.trim();
  const wanted = terms(state.query);
  if (!wanted.length) {
    if (openedBefore) opened = openedBefore;
    matched = signature = openedBefore = null;
    refold();
    return 0;
  }
  if (!openedBefore) openedBefore = opened;
  fieldsCache = fieldsCache || Array.from({length: T.count}, (_, form) => fieldsOf(form));
  const paths = pathsInLowerCase();
  // What every form leaves to be found in the path; null where it cannot be found at all.
  const left = fieldsCache.map((fields) => {
    const inPath = [];
    for (const {field, text} of wanted) {
      if (field === 'path') inPath.push(text);
      else if (field === 'layout') { if (fields.layout !== text && !fields.layout.split(',').includes(text)) return null; }
      // bf16 ends in f16, so a dtype or a pass is found from its beginning.
      else if (field === 'dtype' || field === 'pass') { if (!fields[field].split(' ').some((word) => word.startsWith(text))) return null; }
      else if (field) { if (!fields[field].includes(text)) return null; }
      else if (!Object.values(fields).some((value) => value.includes(text))) inPath.push(text);
    }
    return inPath;
  });
  const forLinks = wanted.some(({field}) => field && field !== 'path') ? null : wanted.map(({text}) => text);
  matched = new Uint8Array(count);
  signature = new Int32Array(2 * count);
  let found = 0;
  for (let place = count - 1; place >= 0; place--) {
    if (kindOf[place] === MODULE) continue;
    const texts = kindOf[place] === LINK ? forLinks : left[formOf[place]];
    if (!texts || !texts.every((text) => paths[place].includes(text))) continue;
    matched[place] = 1;
    signature[2 * place] = signature[2 * place + 1] = 1;
    found++;
  }
  // Children come after their parents, so that backwards every place is complete when it is added.
  for (let place = count - 1; place > 0; place--) {
    if (!matched[place]) continue;
    const parent = parentOf[place], distance = place - parent;
    matched[parent] = 1;
    signature[2 * parent] = Math.imul(signature[2 * parent] ^ Math.imul(distance, 40503) ^ signature[2 * place], 16777619) + 1 | 0;
    signature[2 * parent + 1] = Math.imul(signature[2 * parent + 1] + distance, 69069) + signature[2 * place + 1] | 0;
  }
  refold();
  opened = new Set();
  openSome(FOUND_ROOMY);
  return found;
}

// -- folding ----------------------------------------------------------------------------------

function foldKey(place) {
  const form = formOf[place], kind = kindOf[place];
  if (kind === LINK) return `l${TREE.links[form][2]}`;
  const table = kind === TENSOR ? T : M;
  const key = state.fold === 'layout' ? table.by_layout[form] : table.by_structure[form];
  const left = signature ? `,${signature[2 * place]},${signature[2 * place + 1]}` : '';
  return `${kind}${key}${left}`;
}

let groupsAt = new Map();  // what is folded at a module
let topRows = null;

/** Forget how things fold: after a switch or a search. */
function refold() {
  groupsAt = new Map();
  flatAt = new Map();
  topRows = null;
}

/** The children of a module as groups: their name and their places. */
function groupsOf(rep) {
  const known = groupsAt.get(rep);
  if (known) return known;
  const groups = [], byKey = new Map();
  for (let place = rep + 1; place < end[rep]; place = end[place]) {
    if (matched ? !matched[place] : !isShown(place)) continue;
    const numbered = nameOf[place] < 0;
    if (numbered && state.fold !== 'none') {
      const key = foldKey(place), same = byKey.get(key);
      if (same) { same.members.push(place); continue; }
      const group = {rep: place, members: [place], numbered};
      byKey.set(key, group);
      groups.push(group);
    } else {
      groups.push({rep: place, members: [place], numbered});
    }
  }
  for (const group of groups) {
    group.name = group.numbered
      ? numberText(group.members.map((place) => -1 - nameOf[place])) : nameAt(group.rep);
  }
  groupsAt.set(rep, groups);
  return groups;
}

let flatAt = new Map();  // whether a module is flat, as far as it is known

/** Whether a module is rows of the one above: it holds a few tensors, or one such module. */
function isFlat(rep) {
  const chain = [];
  let flat = flatAt.get(rep);
  while (flat === undefined) {
    chain.push(rep);
    const groups = groupsOf(rep);
    const inner = groups.filter((group) => kindOf[group.rep] === MODULE);
    if (inner.length && groups.length === 1) {
      rep = inner[0].rep;
      flat = flatAt.get(rep);
    } else {
      flat = groups.length > 0 && !inner.length && groups.length <= FLAT;
    }
  }
  for (const one of chain) flatAt.set(one, flat);
  return flat;
}

function isBoxed(group) {
  return kindOf[group.rep] === MODULE && !isFlat(group.rep);
}

function joined(prefix, name) {
  return prefix && name ? `${prefix}.${name}` : prefix || name;
}

/** Whether a module has no row of its own: what is below it stands in its place. */
function isMerged(group) {
  if (kindOf[group.rep] !== MODULE) return false;
  if (isFlat(group.rep) || group.name === '') return true;  // what a wrapper wraps has no name
  const below = groupsOf(group.rep);
  if (below.length === 1) return isBoxed(below[0]);
  return below.length > 0 && below.length <= MOST_VARIANTS && below.every((one) => one.numbered && isBoxed(one));
}

/** The rows directly below a row; null for the root. */
function childRows(row) {
  const known = row ? row.children : topRows;
  if (known) return known;
  const found = [];
  // What is merged into a label may be as deep as the model: the open groups are a list.
  const todo = [];
  const open = (rep, prefix, members, count) => {
    for (const group of groupsOf(rep).slice().reverse()) todo.push({group, prefix, members, count});
  };
  open(row ? row.rep : 0, '', 1, row ? row.count : 1);
  while (todo.length) {
    const {group, prefix, members, count} = todo.pop();
    const label = joined(prefix, group.name);
    const times = members * group.members.length, all = count * group.members.length;
    if (isMerged(group)) open(group.rep, label, times, all);
    else {
      found.push({
        rep: group.rep, label, members: times, count: all,
        parent: row, depth: row ? row.depth + 1 : 0, children: null, places: null, facts: null,
      });
    }
  }
  if (state.sort === 'bytes') found.sort((a, b) => factsOf(b).bytes - factsOf(a).bytes);
  if (state.sort === 'name') found.sort((a, b) => (a.label < b.label ? -1 : a.label > b.label ? 1 : 0));
  found.forEach((child, index) => { child.position = index + 1; child.siblings = found.length; });
  if (row) row.children = found;
  else topRows = found;
  return found;
}

/** Every place that a row stands for, in order. */
function placesOf(row) {
  if (row.places) return row.places;
  const chain = [row.rep];
  const top = row.parent ? row.parent.rep : 0;
  // From the parent row down to this one there may be merged modules, each a group of its own.
  while (parentOf[chain[0]] !== top && chain[0] !== top) chain.unshift(parentOf[chain[0]]);
  let found = row.parent ? placesOf(row.parent) : [0], above = top;
  for (const rep of chain) {
    const group = groupsOf(above).find((one) => one.rep === rep);
    const members = group ? group.members : [rep], from = above;
    found = found.flatMap((place) => members.map((member) => place + (member - from)));
    above = rep;
  }
  row.places = found;
  return found;
}

// -- what is listed ---------------------------------------------------------------------------

function isOpen(row) {
  return kindOf[row.rep] === MODULE && opened.has(row.rep);
}

function list() {
  rows = [];
  const todo = childRows(null).slice().reverse();
  while (todo.length) {
    const row = todo.pop();
    row.index = rows.length;
    rows.push(row);
    if (isOpen(row)) todo.push(...childRows(row).slice().reverse());
  }
  return rows;
}

/** Open rows level by level as long as the list stays short, and the way to what stands out. */
function openSome(limit) {
  let level = childRows(null), total = level.length;
  while (level.length) {
    const next = [];
    for (const row of level) {
      if (kindOf[row.rep] !== MODULE) continue;
      if (DATA.depth >= 0 && row.depth >= DATA.depth) continue;
      const below = childRows(row);
      const stands = alertsAt(row.rep) > 0 && !matched;
      if (total + below.length > limit && !(stands && total < 10 * limit)) continue;
      opened.add(row.rep);
      total += below.length;
      next.push(...below);
    }
    level = next;
  }
}

function openAll(limit) {
  const todo = childRows(null).slice();
  let total = todo.length;
  for (let at = 0; at < todo.length && total < limit; at++) {
    if (kindOf[todo[at].rep] !== MODULE) continue;
    opened.add(todo[at].rep);
    const below = childRows(todo[at]);
    total += below.length;
    for (const row of below) todo.push(row);
  }
  return total < limit;
}

/** Open the way to a place and give the row that stands for it; null if a search hides it. */
function reveal(place) {
  let target = place, rep = 0, level = childRows(null), row = null;
  for (;;) {
    let member = -1;
    const group = groupsOf(rep).find((one) => {
      member = one.members.find((at) => at <= target && target < end[at]);
      return member !== undefined;
    });
    if (!group) return rep === 0 || target !== rep ? null : row;
    // Members are equal, so the target has its like below the first of them.
    target = group.rep + (target - member);
    rep = group.rep;
    const hit = level.find((one) => one.rep === rep);
    if (hit) {
      row = hit;
      if (target === rep) return row;
      opened.add(rep);
      level = childRows(row);
    } else if (target === rep) {
      // It has no row of its own: what is below it stands in its place.
      return level.find((one) => one.rep > rep && one.rep < end[rep]) || row;
    }
  }
}

// -- what a row says --------------------------------------------------------------------------

/** What a row shows, over all the places that it stands for. */
function factsOf(row) {
  if (row.facts) return row.facts;
  const kind = kindOf[row.rep], form = formOf[row.rep];
  const forms = new Set(row.count > 1 ? placesOf(row).map((place) => formOf[place]) : [form]);
  const facts = {kind, form, forms: [...forms], mark: '', warned: false, bytes: 0, parameters: 0};
  const table = kind === TENSOR ? T : M;
  if (kind === LINK) return (row.facts = facts);
  for (const one of forms) {
    if (table.mark[one] >= 0) facts.mark = DATA.marks[table.mark[one]];
    if (kind === TENSOR && T.warned[one]) facts.warned = true;
  }
  facts.alert = kind === MODULE && facts.forms.some((one) => M.alerts[one] > 0);
  facts.bytes = row.count * (kind === TENSOR ? tensorBytes[form] : M.bytes[form]);
  facts.parameters = kind === TENSOR ? row.count : row.count * M.parameters[form];
  return (row.facts = facts);
}

/** The layout that a row shows: a token, of one axis if one is chosen; several are mixed. */
function tokenOfRow(row) {
  const {forms} = factsOf(row);
  const tokens = new Set(forms.map((form) =>
    state.axis ? placementOn(T.layout[form], state.axis) : tokenOf(T.layout[form])));
  return tokens.size === 1 ? [...tokens][0] : 'mixed';
}

/** The bytes of a module by what its layouts say, most first. */
function sharesOfRow(row) {
  const sums = new Map();
  for (const form of factsOf(row).forms) {
    for (const [layout, bytes] of M.byLayout[form]) {
      const token = state.axis ? placementOn(layout, state.axis) : tokenOf(layout);
      sums.set(token, (sums.get(token) || 0) + bytes);
    }
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}
