// What stands around the list: facts, problems, rules, the legend.

function drawHead() {
  byId('title').textContent = printable(DATA.title);
  const list = byId('facts');
  for (const [word, text] of DATA.facts) {
    const item = make('div');
    item.append(make('dt', '', word), make('dd', '', printable(text)));
    list.append(item);
  }
  drawFindings();
  drawComparison();
}

const MOST_FINDINGS = 100;
const LEVELS = {deviation: 'Deviates', error: 'Error', warning: 'Warning', info: 'Note'};

/** Of a comparison: what differs, and why. */
function drawComparison() {
  if (!DATA.comparison.length) return;
  const details = make('details');
  details.append(make('summary', '', 'Comparison'), make('pre', '', DATA.comparison.map(printable).join('\n')));
  byId('findings').append(details);
  byId('findings').hidden = false;
}

function drawFindings() {
  const unset = countMarks('unset');
  const box = byId('findings');
  const items = [];
  for (const [level, text, hint, places] of DATA.findings) {
    const item = make('li', level);
    item.append(make('span', 'level', LEVELS[level] || level), make('span', '', printable(text)));
    if (hint) item.append(make('span', 'hint', printable(hint)));
    if (places.length && placeOf(places[0]) >= 0) {
      const button = make('button', 'show', 'Show');
      button.type = 'button';
      button.setAttribute('aria-label', `Show ${printable(places[0])}`);
      button.addEventListener('click', () => goTo(places[0]));
      item.append(button);
    }
    items.push([level, item]);
  }
  if (unset) {
    const item = make('li', 'error');
    item.append(make('span', 'level', LEVELS.error),
      make('span', '', `${counted(unset, 'parameter')} ${unset === 1 ? 'has' : 'have'} no layout`),
      finder('is:unset'));
    items.splice(items.findIndex(([level]) => level !== 'deviation') >>> 0, 0, ['error', item]);
  }
  if (!items.length) return;
  const list = make('ul');
  list.append(...items.slice(0, MOST_FINDINGS).map(([, item]) => item));
  if (items.length > MOST_FINDINGS) {
    const more = make('li', '', `and ${grouped(items.length - MOST_FINDINGS)} more; what deviates is found by`);
    more.append(finder('is:deviates', 'is:deviates'));
    list.append(more);
  }
  const serious = items.filter(([level]) => level !== 'info').length;
  const details = make('details');
  details.open = serious > 0;
  details.append(make('summary', '', serious ? `Problems: ${serious}` + (items.length > serious ? `, notes: ${items.length - serious}` : '')
    : `Notes: ${items.length}`), list);
  box.append(details);
  box.hidden = false;
}

/** How many places in the tree have a mark. */
function countMarks(name) {
  const mark = DATA.marks.indexOf(name);
  if (!T.mark.includes(mark)) return 0;
  let found = 0;
  for (let place = 0; place < count; place++) {
    if (kindOf[place] === TENSOR && T.mark[formOf[place]] === mark) found++;
  }
  return found;
}

/** A button that searches. */
function finder(query, ...content) {
  const button = make('button', 'find', content.length ? '' : 'Show');
  button.type = 'button';
  button.title = `Search ${query}`;
  button.append(...content);
  button.addEventListener('click', () => startSearch(query));
  return button;
}

/** What colours tell: a choice, where there is one. */
function colorChoice() {
  const label = make('label', '', 'Colour by '), choice = make('select');
  choice.id = 'color';
  choice.append(new Option(DATA.layoutsKnown ? 'layout' : 'nothing', 'layout'));
  if (DATA.passCounts.length) choice.append(new Option('pass', 'pass'));
  choice.append(new Option('dtype', 'dtype'), new Option('bytes', 'bytes'));
  choice.value = state.colorBy;
  if (!choice.value) choice.value = state.colorBy = 'layout';
  choice.addEventListener('change', () => {
    state.colorBy = choice.value;
    redraw();
    drawLegend();
    byId('color').focus();
  });
  label.append(choice);
  return label;
}

function drawLegend() {
  const box = byId('legend');
  box.replaceChildren(colorChoice());
  const group = (word, items) => {
    if (!items.length) return;
    const part = make('div');
    part.append(make('span', 'word', word), ...items);
    box.append(part);
  };
  group('Layouts', DATA.tokens.map(([token, number, meaning]) => {
    const button = finder(token === '-' ? 'is:unset' : `layout:${token}`, tokenChip(token), ` ${grouped(number)}`);
    if (meaning) button.append(make('span', 'quiet', ` ${meaning}`));
    return button;
  }));
  group('Decided by', DATA.passCounts.map(([pass, number]) => finder(`pass:${pass}`, kindChip('pass', pass, DATA.passCounts), ` ${grouped(number)}`)));
  if (DATA.dtypeCounts.length > 1 || state.colorBy === 'dtype') {
    group('Dtypes', DATA.dtypeCounts.map(([dtype, number]) =>
      finder(`dtype:${dtype}`, kindChip('dtype', dtype, DATA.dtypeCounts), ` ${grouped(number)}`)));
  }
  if (state.colorBy === 'bytes') {
    group('Bytes', [...Array(SCALE_STEPS).keys()].map((step) =>
      make('span', `token scale${step}`, step === SCALE_STEPS - 1 ? 'much' : step ? '×4' : 'little')));
  }
  if (DATA.rules.length) {
    const idle = DATA.rules.filter((rule) => !rule[5]).length;
    const button = make('button', 'find', `${counted(DATA.rules.length, 'rule')}${idle ? `, ${idle} matched nothing` : ''}`);
    button.type = 'button';
    button.addEventListener('click', showRules);
    group('Plan', [button]);
  }
  const keys = make('div', 'keys');
  keys.append(make('span', 'word', 'Keys'));
  for (const [key, what] of [['/', 'search'], ['↑ ↓ ← →', 'move'], ['Enter', 'details'], ['c', 'copy name'], ['Esc', 'close']]) {
    keys.append(make('kbd', '', key), make('span', '', ` ${what}  `));
  }
  box.append(keys);
}

/** The rules in the panel: what each decided, those that decided nothing, what none decided. */
function showRules() {
  const list = make('ol', 'rules');
  for (const [, place, layout, reason, number, matches] of DATA.rules) {
    const item = make('li', number ? '' : 'idle');
    const what = number ? ` decides ${counted(number, 'parameter')}`
      : matches ? ' decides nothing that is shown' : ' matched nothing';
    item.append(make('p', 'rule', printable(place)), tokenChip(layout), make('span', 'what', what));
    if (reason) item.append(make('p', 'why', printable(reason)));
    list.append(item);
  }
  const parts = [panelHead('Rules of the plan'), list];
  const {count: without, names: found} = DATA.ruleless;
  if (without) parts.push(section(`${counted(without, 'parameter')} without a rule of the plan`, names(found, 200)));
  shownPlace = -1;
  openPanel(parts);
}
