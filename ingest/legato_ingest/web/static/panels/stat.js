// Stat panels: one row of figures. The first figure is large; the others, with their names, are in a line below it.
//
// The value of a column is its last one that is not null. Other reductions than lastNotNull, sparklines and percent changes of
// Grafana's stat panel are not drawn.

import { readable, textOn } from './colors.js';
import { el, readTheme, reasonWithoutData, showMessage } from './dom.js';
import { display, kindOf, settingsOf, toRegExp } from './fields.js';
import { cellLink } from './links.js';
import { summary } from './series.js';

/** Draw a stat panel. */
export async function drawStat(element, panel, frames, context) {
  const theme = readTheme(element);
  const figures = frames.filter((frame) => frame?.rows).flatMap((frame) => figuresOf(panel, frame, context, theme));
  if (!figures.length) {
    showMessage(element, reasonWithoutData(panel));
    return { destroy() {} };
  }
  const [main, ...others] = figures;
  const names = panel.options?.textMode !== 'value';
  const large = figureNode(main, 'pn-stat-main', names, panel, theme);
  const small = others.filter((figure) => !figure.missing).map((figure) => figureNode(figure, 'pn-stat-other', names, panel, theme));
  const rest = small.length ? el('div', 'pn-stat-others', {}, small) : null;
  const group = el('div', 'pn-stat', { role: 'group', 'aria-label': panel.title || 'Figures' }, [large, rest]);
  element.replaceChildren(group);
  // What scrolls must be reached by the keyboard.
  if (group.scrollHeight > group.clientHeight) group.tabIndex = 0;
  return { destroy() {} };
}

/** Return the figures of a frame: [{name, text, color, missing, link}], in the order of its columns. */
function figuresOf(panel, frame, context, theme) {
  const columns = frame.columns.filter((column) => isShown(panel, column));
  const cells = columns.map((column) => {
    const settings = settingsOf(panel, column.name, column.type);
    const row = lastRow(column.values);
    const [value, exact] = [column.values[row] ?? null, column.exact?.get(row)];
    const numbers = kindOf(column.type) === 'number' ? summary(column.values) : { min: 0, max: 100 };
    const shown = display(settings, value, column.type, theme, [numbers.min ?? 0, numbers.max ?? 100], exact);
    return { column, settings, raw: exact ?? value, shown };
  });
  const fields = cells.map(({ column, raw, shown }) => ({ name: column.name, raw, text: shown.text }));
  return cells.map(({ column, settings, raw, shown }) => {
    const link = shown.missing ? null : cellLink(settings, { raw, text: shown.text, fields }, context);
    return { name: settings.displayName || column.name, ...shown, link };
  });
}

/** The panel's option `fields` selects columns: a name, a pattern, or all numbers if it is empty. */
function isShown(panel, column) {
  const selected = panel.options?.reduceOptions?.fields || '';
  if (!selected) return kindOf(column.type) === 'number';
  return selected.startsWith('/') ? Boolean(toRegExp(selected)?.test(column.name)) : selected === column.name;
}

function lastRow(values) {
  return values.findLastIndex((value) => value !== null && value !== undefined && !Number.isNaN(value));
}

function figureNode(figure, className, withName, panel, theme) {
  const value = el('span', `pn-stat-value${figure.missing ? ' pn-stat-missing' : ''}`, {}, [figure.link ?? String(figure.text)]);
  const name = withName ? el('span', 'pn-stat-name', { text: figure.name }) : null;
  const node = el('div', className, {}, [value, name]);
  if (!figure.missing && figure.color) paint(node, value, figure.color, panel.options?.colorMode, theme);
  return node;
}

function paint(node, value, color, mode, theme) {
  if (mode === 'background' || mode === 'background_solid') {
    node.style.backgroundColor = color;
    node.style.color = textOn(color);
  } else if (mode !== 'none') value.style.color = readable(color, theme);
}
