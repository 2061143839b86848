// A panel's data as text: CSV with exact values, Markdown with the values as the panel shows them.
//
// It does not offer files for download; the page does that.

import { visibleText } from '../visible.js';
import { isDay, kindOf, plainText, mapValue, settingsOf } from './fields.js';

/** Return frames as CSV (RFC 4180), with all texts as they are, one after the other with an empty line between them. */
export function toCsv(frames) {
  return frames.filter((frame) => frame?.columns?.length).map(frameToCsv).join('\r\n');
}

function frameToCsv(frame) {
  const lines = [frame.columns.map((column) => quoted(safe(column.name)))];
  for (let row = 0; row < frame.rows; row += 1) lines.push(frame.columns.map((column) => quoted(csvText(column, row))));
  return lines.map((line) => `${line.join(',')}\r\n`).join('');
}

/** Times are ISO 8601 in UTC, null is empty, maps and arrays are JSON. */
function csvText(column, row) {
  const value = column.values[row];
  if (value === null || value === undefined) return '';
  if (kindOf(column.type) === 'time' && typeof value === 'number') return isoText(value, column.type);
  if (column.exact?.has(row)) return column.exact.get(row);
  if (typeof value === 'object') return safe(JSON.stringify(value));
  return typeof value === 'string' ? safe(value) : String(value);
}

function isoText(value, type) {
  const time = new Date(value);
  if (Number.isNaN(time.getTime())) return String(value);
  return isDay(type) ? time.toISOString().slice(0, 10) : time.toISOString();
}

/** A spreadsheet takes a text that begins like a formula for one. An apostrophe prevents it. */
function safe(text) {
  return /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
}

function quoted(text) {
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Return frames as pipe tables, with the values as the panel shows them. */
export function toMarkdown(frames, panel) {
  return frames.filter((frame) => frame?.columns?.length).map((frame) => frameToMarkdown(frame, panel)).join('\n');
}

function frameToMarkdown(frame, panel) {
  const columns = frame.columns.map((column) => ({ ...column, settings: settingsOf(panel, column.name, column.type) }));
  const lines = [
    columns.map((column) => escaped(column.name)),
    columns.map((column) => (kindOf(column.type) === 'number' ? '---:' : '---')),
  ];
  for (let row = 0; row < frame.rows; row += 1) lines.push(columns.map((column) => escaped(shownText(column, row))));
  return lines.map((cells) => `| ${cells.join(' | ')} |\n`).join('');
}

function shownText({ settings, values, exact, type }, row) {
  const value = values[row] ?? null;
  return mapValue(settings, value)?.text ?? plainText(settings, value, type, exact?.get(row)) ?? '–';
}

function escaped(text) {
  return visibleText(String(text).replace(/\\/g, '\\\\').replace(/\|/g, '\\|').replace(/</g, '&lt;').replace(/\s*[\r\n]+\s*/g, ' ').trim());
}
