// Text panels: a small part of Markdown as DOM nodes.
//
// It knows headings, paragraphs, lists (also nested), quotes, tables, code blocks, rules, bold, italic, code and links. HTML in
// the text stays text: it is never parsed. Links follow the rules of links.js.

import { el } from './dom.js';
import { anchor, substitute } from './links.js';

const INLINE = new RegExp([
  /`([^`]+)`/,
  /\*\*(.+?)\*\*/,
  /(?<!\w)[*_](?!\s)(.+?)(?<!\s)[*_](?!\w)/,
  /\[([^\]]+)\]\(([^)\s]+)(?:\s+"[^"]*")?\)/,
  /<(https:\/\/[^>\s]+)>/,
  /\\([\\`*_[\]()<>#+.!|-])/,
].map((pattern) => pattern.source).join('|'), 's');
const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;
const FENCE = /^\s*```/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Draw a text panel. */
export function drawText(element, panel, frames, context) {
  const options = panel.options || {};
  const text = String(options.content || '');
  const body = options.mode === 'code' ? [preformatted(text)] : renderMarkdown(text, context);
  element.replaceChildren(el('div', 'pn-text', { tabindex: '0' }, body));
  return { destroy() {} };
}

/** Return the DOM nodes of a Markdown text. */
export function renderMarkdown(text, context) {
  return blocks(text.replace(/\r\n?/g, '\n').split('\n'), context);
}

function blocks(lines, context) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) at += 1;
    else {
      const [node, next] = block(lines, at, context);
      nodes.push(node);
      at = next;
    }
  }
  return nodes;
}

/** Return the node of the block that begins at this line, and the line after it. */
function block(lines, at, context) {
  const line = lines[at];
  if (FENCE.test(line)) return codeBlock(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [el(`h${Math.min(6, heading[1].length + 2)}`, '', {}, inline(heading[2], context)), at + 1];
  if (RULE.test(line)) return [el('hr'), at + 1];
  if (/^\s*>/.test(line)) return quote(lines, at, context);
  if (ITEM.test(line)) return list(lines, at, context);
  if (line.includes('|') && DIVIDER.test(lines[at + 1] ?? '') && lines[at + 1].includes('-')) return table(lines, at, context);
  return paragraph(lines, at, context);
}

// It may be wider than its panel, and keys scroll only what has the focus.
const preformatted = (text) => el('pre', '', { tabindex: '0' }, [el('code', '', { text })]);

function codeBlock(lines, at) {
  let end = at + 1;
  while (end < lines.length && !FENCE.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join('\n');
  return [preformatted(text), end + 1];
}

function quote(lines, at, context) {
  let end = at;
  while (end < lines.length && /^\s*>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^\s*>\s?/, ''));
  return [el('blockquote', '', {}, blocks(inner, context)), end];
}

function startsBlock(line) {
  return !line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || /^\s*>/.test(line) || ITEM.test(line);
}

function paragraph(lines, at, context) {
  let end = at + 1;
  while (end < lines.length && !startsBlock(lines[end])) end += 1;
  return [el('p', '', {}, inline(lines.slice(at, end).join('\n'), context)), end];
}

/** A list. Lines with a deeper indent belong to the item before them: its text goes on, or a nested list begins. */
function list(lines, at, context) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const node = el(ordered ? 'ol' : 'ul');
  if (ordered && parseInt(first[2], 10) !== 1) node.start = parseInt(first[2], 10);
  let end = at;
  while (end < lines.length && isSibling(lines[end], first, ordered)) {
    const [item, next] = listItem(lines, end, first[1].length, context);
    node.append(item);
    end = next;
  }
  return [node, end];
}

function isSibling(line, first, ordered) {
  const match = ITEM.exec(line);
  return Boolean(match) && match[1].length === first[1].length && /\d/.test(match[2]) === ordered;
}

function listItem(lines, at, indent, context) {
  const own = [ITEM.exec(lines[at])[3]];
  let end = at + 1;
  while (end < lines.length && !startsBlock(lines[end])) own.push(lines[end++].trim());
  const nested = [];
  while (end < lines.length && (ITEM.exec(lines[end])?.[1].length ?? -1) > indent) {
    const [node, next] = list(lines, end, context);
    nested.push(node);
    end = next;
  }
  // One empty line between two items keeps them in one list.
  if (end + 1 < lines.length && !lines[end].trim() && ITEM.exec(lines[end + 1])?.[1].length === indent) end += 1;
  return [el('li', '', {}, [...inline(own.join('\n'), context), ...nested]), end];
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((text) => text.trim().replace(/\\\|/g, '|'));
}

function table(lines, at, context) {
  const row = (line, tag) => el('tr', '', {}, cells(line).map((text) => el(tag, '', {}, inline(text, context))));
  let end = at + 2;
  const body = el('tbody');
  while (end < lines.length && lines[end].includes('|')) body.append(row(lines[end++], 'td'));
  return [el('table', '', {}, [el('thead', '', {}, [row(lines[at], 'th')]), body]), end];
}

/** Return the nodes of a text with bold, italic, code and links. */
function inline(text, context) {
  const nodes = [];
  let rest = text;
  for (let match = INLINE.exec(rest); match; match = INLINE.exec(rest)) {
    if (match.index) nodes.push(rest.slice(0, match.index));
    nodes.push(inlineNode(match, context));
    rest = rest.slice(match.index + match[0].length);
  }
  return rest ? [...nodes, rest] : nodes;
}

function inlineNode(match, context) {
  const [whole, code, bold, italic, label, address, bare, escaped] = match;
  if (code !== undefined) return el('code', '', { text: code });
  if (bold !== undefined) return el('strong', '', {}, inline(bold, context));
  if (italic !== undefined) return el('em', '', {}, inline(italic, context));
  if (escaped !== undefined) return escaped;
  const url = substitute(address ?? bare, { raw: '', text: '', fields: [] }, context);
  return anchor(url, label ?? bare, '', context.href) ?? whole;
}
