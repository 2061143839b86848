// The links of fields: the values in their URLs, and which URLs become a link.
//
// Only addresses of this page (they start with one "/") and https addresses become links. All values are percent-encoded, so a
// value from the store cannot change the address it is put into.

import { visibleText } from '../visible.js';

const FIELD = /^__data\.fields(?:\.([\w-]+)|\[(?:"([^"]*)"|'([^']*)'|(\d+))\])(?:\.(text|numeric|raw))?$/;

/** Return the URL with Grafana's macros replaced. `cell`: {raw, text, fields: [{name, raw, text}]}. */
export function substitute(url, cell, context) {
  return url.replace(/\$\{([^}]*)\}/g, (whole, expression) => replacement(expression, cell, context) ?? whole);
}

function replacement(expression, cell, context) {
  if (expression.startsWith('__')) return macro(expression, cell, context);
  const [name, form] = expression.split(':');
  const values = context.variables?.[name];
  if (!values) return '';
  const list = Array.isArray(values) ? values : [values];
  if (form === 'queryparam') return list.map((value) => `var-${encode(name)}=${encode(value)}`).join('&');
  return list.map(encode).join(',');
}

function macro(expression, cell, context) {
  const { from_ms: from, to_ms: to } = context.span;
  if (expression === '__value.raw' || expression === '__value.numeric') return encode(cell.raw);
  if (expression === '__value.text') return encode(cell.text);
  if (expression === '__url_time_range') return `from=${Math.round(from)}&to=${Math.round(to)}`;
  if (expression === '__from') return String(Math.round(from));
  if (expression === '__to') return String(Math.round(to));
  if (expression === '__all_variables') return allVariables(context);
  return fieldValue(expression, cell);
}

function fieldValue(expression, cell) {
  const match = FIELD.exec(expression);
  if (!match) return '';
  const [, word, quoted, single, index, form] = match;
  const name = word ?? quoted ?? single;
  const field = name === undefined ? cell.fields[Number(index)] : cell.fields.find((one) => one.name === name);
  if (!field) return '';
  return encode(form === 'text' ? field.text : field.raw);
}

function allVariables(context) {
  const pairs = [];
  for (const [name, values] of Object.entries(context.variables || {})) {
    for (const value of Array.isArray(values) ? values : [values]) pairs.push(`var-${encode(name)}=${encode(value)}`);
  }
  return pairs.join('&');
}

function encode(value) {
  if (value === null || value === undefined) return '';
  return encodeURIComponent(typeof value === 'object' ? JSON.stringify(value) : String(value));
}

/** Return what kind of address it is: 'page', 'https', or null if it must not become a link. */
export function addressKind(url) {
  if (/^\/(?![/\\])/.test(url)) return 'page';
  return /^https:\/\/[^\s]+$/i.test(url) ? 'https' : null;
}

/** Return an <a> for an address, or null if the address is not allowed. `href`: turns a Grafana URL into one of this page. */
export function anchor(url, text, title, href) {
  const kind = addressKind(url);
  if (!kind) return null;
  const link = document.createElement('a');
  link.href = kind === 'page' ? href(url) : url;
  link.textContent = visibleText(text);
  if (title) link.title = visibleText(title);
  if (kind === 'https') [link.target, link.rel] = ['_blank', 'noopener noreferrer'];
  return link;
}

/** Return the <a> of a cell's first allowed link, or null. */
export function cellLink(settings, cell, context) {
  for (const link of settings.links || []) {
    const node = anchor(substitute(link.url || '', cell, context), cell.text, link.title, context.href);
    if (node) return node;
  }
  return null;
}
