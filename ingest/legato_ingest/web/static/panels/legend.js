// The legend below a chart: a list of its series with their figures. A click or Enter hides and shows a series.
//
// Ctrl, Shift or Cmd with a click or Enter shows this series alone; once more shows all. It does not draw the chart.

import { el, memoryOf, swatch } from './dom.js';

/**
 * Return {element, update}. `items`: [{name, color, figures: [[label, text]]}]; `hidden`: a Set of the names that are not shown,
 * which the legend changes; `onChange` is called after a change.
 */
export function buildLegend(items, hidden, onChange) {
  const buttons = items.map((item) => {
    const button = el('button', 'pn-legend-item', { type: 'button', title: 'Ctrl or Shift: this series alone' }, [
      swatch(item.color),
      el('span', 'pn-legend-name', { text: item.name }),
      ...item.figures.map(([label, text]) => el('span', 'pn-legend-figure', { text: `${label} ${text}` })),
    ]);
    button.addEventListener('click', (event) => {
      if (event.ctrlKey || event.shiftKey || event.metaKey) isolate(items, hidden, item.name);
      else toggle(hidden, item.name);
      update();
      onChange();
    });
    return button;
  });
  const update = () => buttons.forEach((button, at) => button.setAttribute('aria-pressed', String(!hidden.has(items[at].name))));
  update();
  const list = el('ul', 'pn-legend', { 'aria-label': 'Series' }, buttons.map((button) => el('li', '', {}, [button])));
  return { element: list, update };
}

/** Return the Set of the series that a user has hidden in this element, without names that have gone and never all of them. */
export function hiddenSeries(element, panel, items) {
  const memory = memoryOf(element, panel);
  const names = new Set(items.map((item) => item.name));
  const kept = [...(memory.hidden ?? [])].filter((name) => names.has(name));
  memory.hidden = new Set(kept.length < names.size ? kept : []);
  return memory.hidden;
}

function toggle(hidden, name) {
  if (!hidden.delete(name)) hidden.add(name);
}

function isolate(items, hidden, name) {
  const alone = !hidden.has(name) && hidden.size === items.length - 1;
  hidden.clear();
  if (!alone) for (const item of items) if (item.name !== name) hidden.add(item.name);
}

const LABELS = { lastNotNull: ['last', 'last'], last: ['last', 'last'], max: ['max', 'max'], min: ['min', 'min'], sum: ['total', 'sum'] };

/** Return the figures of a series for the legend: [[label, text]], for the panel's calculations. */
export function legendFigures(panel, values, format) {
  const figures = [];
  for (const calculation of panel.options?.legend?.calcs || []) {
    const [label, key] = LABELS[calculation] || [];
    if (label && values[key] !== null) figures.push([label, format(values[key])]);
  }
  return figures;
}

/** Return the parts of a chart panel: the host of the drawing, with a description for readers that cannot see it. */
export function chartParts(element, label) {
  const host = el('div', 'pn-plot', { role: 'img', tabindex: '0', 'aria-label': label });
  const root = el('div', 'pn-chart', {}, [host]);
  element.replaceChildren(root);
  return { root, host };
}

/** Return the description of a chart in words: its title and each series with its last value, at most twelve of them. */
export function chartLabel(panel, items) {
  const parts = items.slice(0, 12).map(({ name, figures }) => [name, ...figures.slice(0, 1).map((one) => one.join(' '))].join(' '));
  if (items.length > 12) parts.push(`and ${items.length - 12} more`);
  return `${panel.title || 'Chart'}: ${parts.join(', ')}`;
}
