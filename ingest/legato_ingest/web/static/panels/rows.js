// The rows of a table: cells with text, colour and link, and their order and selection by a filter.
//
// It builds what a table shows and makes no DOM nodes; table.js draws it.

import { display, kindOf, settingsOf } from './fields.js';
import { summary } from './series.js';

/** Return the columns of a frame with their settings: [{name, title, type, kind, settings, values, range, colored}]. */
export function columnsOf(panel, frame) {
  return frame.columns.map((column) => {
    const settings = settingsOf(panel, column.name, column.type);
    const kind = kindOf(column.type);
    const { min, max } = kind === 'number' ? summary(column.values) : { min: 0, max: 100 };
    const look = settings.custom.cellOptions?.type || 'auto';
    return { ...column, title: settings.displayName || column.name, kind, settings, range: [min ?? 0, max ?? 100], look };
  }).filter((column) => !column.settings.custom.hidden && !column.settings.custom.hideFrom?.viz);
}

/** Return the cells of a row, one for each column: {raw, text, color, missing, fields}. */
export function cellsOf(columns, row, theme) {
  const cells = columns.map((column) => {
    const raw = column.values[row] ?? null;
    const exact = column.exact?.get(row);
    const shown = display(column.settings, raw, column.type, theme, column.range, exact);
    return { raw: exact ?? raw, text: String(shown.text), color: column.look === 'auto' ? null : shown.color, missing: shown.missing };
  });
  const fields = cells.map((cell, at) => ({ name: columns[at].name, raw: cell.raw, text: cell.text }));
  for (const cell of cells) cell.fields = fields;
  return cells;
}

/** Return the numbers of the rows that contain all words of the filter, in the order of the sort {column, direction}. */
export function selectRows(table, filter, sort) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  let rows = Array.from({ length: table.count }, (_, row) => row);
  if (words.length) rows = rows.filter((row) => containsAll(textOf(table, row), words));
  if (!sort) return rows;
  const { values, exact } = table.columns[sort.column];
  const sign = sort.direction === 'descending' ? -1 : 1;
  return rows.sort((left, right) =>
    compare(values[left], values[right], sign) || compareExact(exact?.get(left), exact?.get(right), sign) || left - right);
}

/** Compare the exact texts of two numbers of which the rounded values are equal. */
function compareExact(left, right, sign) {
  if (left === right || !WHOLE.test(left) || !WHOLE.test(right)) return 0;
  return BigInt(left) < BigInt(right) ? -sign : sign;
}

function containsAll(text, words) {
  return words.every((word) => text.includes(word));
}

/** Return the text of a row in lower case. It is made once for each row, when a filter is used. */
function textOf(table, row) {
  table.texts ??= [];
  table.texts[row] ??= cellsOf(table.columns, row, table.theme).map((cell) => cell.text).join('\n').toLowerCase();
  return table.texts[row];
}

const WHOLE = /^-?\d+$/;
const WORDS = new Intl.Collator(undefined, { numeric: true, sensitivity: 'base' });

/** Compare two values of one column. Missing values are last in both directions. */
function compare(left, right, sign) {
  const [none, other] = [left === null || left === undefined, right === null || right === undefined];
  if (none || other) return Number(none) - Number(other);
  if (typeof left === 'number' && typeof right === 'number') return sign * (left - right);
  if (typeof left === 'object' || typeof right === 'object') return sign * WORDS.compare(JSON.stringify(left), JSON.stringify(right));
  return sign * WORDS.compare(String(left), String(right));
}
