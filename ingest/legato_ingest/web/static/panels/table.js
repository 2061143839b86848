// Table panels: sortable columns, a filter, pages, links and colours in cells.
//
// Only the rows of one page are in the document. What a cell shows is in rows.js. The footer and cell types other than text
// with a colour or a background are not drawn.

import { contrast, readable, textOn } from './colors.js';
import { el, memoryOf, readTheme, reasonWithoutData, showMessage, swatch } from './dom.js';
import { cellLink } from './links.js';
import { cellsOf, columnsOf, selectRows } from './rows.js';

const PAGE_SIZES = [25, 50, 100];
const FEW_ROWS = 6;

/** Draw a table panel. */
export async function drawTable(element, panel, frames, context) {
  const frame = frames[panel.options?.frameIndex ?? 0] ?? frames[0];
  if (!frame?.rows) {
    showMessage(element, reasonWithoutData(panel));
    return { destroy() {} };
  }
  const columns = columnsOf(panel, frame);
  const table = { panel, context, columns, count: frame.rows, theme: readTheme(element) };
  Object.assign(table, { page: 0, size: PAGE_SIZES[0], filter: '', sort: null });
  recall(table, memoryOf(element, panel));
  element.replaceChildren(...skeleton(table));
  refresh(table);
  restoreView(table, memoryOf(element, panel));
  return { destroy: () => remember(table, memoryOf(element, panel)) };
}

/** Take the order, the filter and the page from an earlier drawing: new data must not disturb a reader. */
function recall(table, memory) {
  const column = table.columns.findIndex(({ name }) => name === memory.sort?.name);
  if (column >= 0) table.sort = { column, direction: memory.sort.direction };
  for (const key of ['page', 'size', 'filter']) table[key] = memory[key] ?? table[key];
}

function restoreView(table, memory) {
  [table.scroller.scrollTop, table.scroller.scrollLeft] = [memory.top ?? 0, memory.left ?? 0];
  if (memory.focused) table.input?.focus({ preventScroll: true });
}

function remember(table, memory) {
  clearTimeout(table.timer);
  const { page, size, scroller, sort } = table;
  if (!scroller.isConnected) return;
  const focused = Boolean(table.input) && document.activeElement === table.input;
  Object.assign(memory, { page, size, filter: table.input?.value ?? '', top: scroller.scrollTop, left: scroller.scrollLeft, focused });
  memory.sort = sort && { name: table.columns[sort.column].name, direction: sort.direction };
}

function skeleton(table) {
  const filterable = table.columns.some((column) => column.settings.custom.filterable) && (table.count >= FEW_ROWS || table.filter);
  table.body = el('tbody');
  table.headers = table.columns.map((column, at) => headerCell(table, column, at));
  const head = el('thead', '', {}, [el('tr', '', {}, table.headers)]);
  const node = el('table', 'pn-table', { 'aria-label': table.panel.title || 'Table' }, [head, table.body]);
  if (table.panel.options?.showHeader === false) head.hidden = true;
  const scroller = el('div', 'pn-table-scroll', { tabindex: '0', role: 'region', 'aria-label': table.panel.title || 'Table' }, [node]);
  table.footer = el('div', 'pn-table-footer');
  table.pager = el('span', 'pn-pager');
  table.footer.append(...(filterable ? [filterBox(table)] : []), table.pager);
  table.scroller = scroller;
  return [el('div', 'pn-table-box', {}, [scroller, table.footer])];
}

function isRight(column) {
  const align = column.settings.custom.align || 'auto';
  return align === 'right' || (align === 'auto' && column.kind === 'number');
}

function headerCell(table, column, at) {
  const button = el('button', 'pn-sort', { type: 'button', onclick: () => sortBy(table, at) }, [
    el('span', '', { text: column.title }),
    el('span', 'pn-sort-mark', { 'aria-hidden': 'true' }),
  ]);
  return el('th', isRight(column) ? 'pn-right' : '', { scope: 'col', 'aria-sort': 'none' }, [button]);
}

/** Sort by a column: numbers and times from the greatest first, words from A; then the other way; then not at all. */
function sortBy(table, at) {
  const first = ['number', 'time'].includes(table.columns[at].kind) ? 'descending' : 'ascending';
  const second = first === 'ascending' ? 'descending' : 'ascending';
  const now = table.sort?.column === at ? table.sort.direction : null;
  const next = { [first]: second, [second]: null }[now];
  table.sort = now === null ? { column: at, direction: first } : next && { column: at, direction: next };
  table.page = 0;
  refresh(table);
}

function filterBox(table) {
  const input = el('input', 'pn-filter', {
    type: 'search', placeholder: 'Filter rows', 'aria-label': `Filter rows of ${table.panel.title || 'the table'}`, spellcheck: 'false',
  });
  [table.input, input.value] = [input, table.filter];
  input.addEventListener('input', () => {
    clearTimeout(table.timer);
    table.timer = setTimeout(() => {
      [table.filter, table.page] = [input.value, 0];
      refresh(table);
    }, 120);
  });
  return input;
}

function refresh(table) {
  const rows = selectRows(table, table.filter, table.sort);
  const pages = Math.max(1, Math.ceil(rows.length / table.size));
  table.page = Math.min(table.page, pages - 1);
  const shown = rows.slice(table.page * table.size, (table.page + 1) * table.size);
  table.body.replaceChildren(...shown.map((row) => rowNode(table, row)));
  if (!shown.length) table.body.append(emptyRow(table));
  table.headers.forEach((header, at) => header.setAttribute('aria-sort', table.sort?.column === at ? table.sort.direction : 'none'));
  table.pager.replaceChildren(...pagerNodes(table, rows.length, pages));
}

function emptyRow(table) {
  return el('tr', '', {}, [el('td', 'pn-table-none', { colspan: table.columns.length, text: 'No row contains this text.' })]);
}

function rowNode(table, row) {
  const cells = cellsOf(table.columns, row, table.theme);
  return el('tr', '', {}, cells.map((cell, at) => cellNode(table, table.columns[at], cell)));
}

function cellNode(table, column, cell) {
  const link = cell.missing ? null : cellLink(column.settings, cell, table.context);
  const node = el('td', cellClass(column, cell), {}, [link ?? cell.text]);
  if (cell.color && !cell.missing) paint(node, link ?? node, cell.color, column, table.theme);
  return node;
}

function cellClass(column, cell) {
  const names = [];
  if (isRight(column)) names.push('pn-right');
  if (cell.text.length > 44) names.push('pn-long');
  if (column.kind === 'number' || column.kind === 'time') names.push('pn-figures');
  if (cell.missing) names.push('pn-missing');
  return names.join(' ');
}

/** Colour a cell. A text colour that is hard to read here is changed, and a square beside the text has the exact colour. */
function paint(node, text, color, column, theme) {
  if (column.look === 'color-background' || column.look === 'color-background-solid') {
    node.style.backgroundColor = color;
    text.style.color = textOn(color);
  } else if (column.look === 'color-text') {
    text.style.color = readable(color, theme);
    if (column.kind === 'string' && (contrast(color, theme.panel) < 4.5 || column.settings.links)) node.prepend(swatch(color));
  }
}

function pagerNodes(table, count, pages) {
  const from = count ? table.page * table.size + 1 : 0;
  const to = Math.min(count, (table.page + 1) * table.size);
  const all = count === table.count ? '' : ` (${table.count.toLocaleString('en')} in all)`;
  const rows = `${count.toLocaleString('en')} ${count === 1 ? 'row' : 'rows'}${all}`;
  const text = el('span', 'pn-count', { role: 'status', text: pages > 1 ? `${from}–${to} of ${rows}` : rows });
  if (table.count <= PAGE_SIZES[0]) return [text];
  return [sizeChoice(table), pageButton(table, '‹', 'Previous page', -1, pages), text, pageButton(table, '›', 'Next page', 1, pages)];
}

function sizeChoice(table) {
  const options = PAGE_SIZES.map((size) => el('option', '', { value: size, text: `${size} a page`, selected: size === table.size }));
  const select = el('select', 'pn-size', { 'aria-label': 'Rows a page' }, options);
  select.addEventListener('change', () => {
    [table.size, table.page] = [Number(select.value), 0];
    refresh(table);
    table.pager.querySelector('select')?.focus();
  });
  return select;
}

function pageButton(table, sign, label, by, pages) {
  const button = el('button', 'pn-page', { type: 'button', 'aria-label': label, text: sign });
  button.disabled = table.page + by < 0 || table.page + by >= pages;
  button.addEventListener('click', () => {
    table.page += by;
    refresh(table);
    table.scroller.scrollTop = 0;
    const again = table.pager.querySelector(`[aria-label="${label}"]`);
    if (!again?.disabled) again?.focus();
  });
  return button;
}
