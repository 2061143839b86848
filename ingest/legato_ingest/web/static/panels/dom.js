// Small helpers to build DOM nodes, shared by all panels.
//
// All text is set as visible text, never as HTML. This module knows no panel and no data.

import { visibleText } from '../visible.js';

const SPOKEN = new Set(['aria-label', 'title']);

/** Return an element with a class, properties and children. A child is a node or a text; null is skipped. */
export function el(tag, className = '', properties = {}, children = []) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(properties)) setProperty(node, name, value);
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : visibleText(child));
  }
  return node;
}

function setProperty(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === 'text') node.textContent = visibleText(value);
  else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
  else node.setAttribute(name, value === true ? '' : SPOKEN.has(name) ? visibleText(value) : String(value));
}

/** Show a message in the middle of an empty panel: the reason why there is no data. */
export function showMessage(element, text, className = '') {
  const message = el('p', 'pn-message-text', { text });
  element.replaceChildren(el('div', `pn-message ${className}`.trim(), { role: 'status' }, [message]));
}

/** Return the message for a panel without data: its own explanation, or a general one. */
export function reasonWithoutData(panel) {
  return panel.fieldConfig?.defaults?.noValue || 'No data in this range.';
}

/** Return a small square in a colour, for legends and tooltips. It carries no meaning without the name beside it. */
export function swatch(color, className = 'pn-swatch') {
  const node = el('span', className, { 'aria-hidden': 'true' });
  node.style.backgroundColor = color;
  return node;
}

/** Return the page's theme: colours and font, read from the CSS custom properties that apply to an element. */
export function readTheme(element) {
  const style = getComputedStyle(element);
  const value = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  return {
    panel: value('--panel', '#181b1f'),
    border: value('--border', '#34373d'),
    text: value('--text', '#d8d9da'),
    muted: value('--muted', '#9aa0a6'),
    accent: value('--accent', '#56b4e9'),
    grid: value('--grid', '#2a2d33'),
    good: value('--good', '#73bf69'),
    warn: value('--warn', '#ff9830'),
    bad: value('--bad', '#f2495c'),
    font: style.fontFamily || 'system-ui, sans-serif',
  };
}

const memories = new WeakMap();

/**
 * Return what an element remembers of a panel between two drawings: a sort, a filter, hidden series. It is an object that the
 * panel changes. Another panel in the same element begins with an empty one.
 */
export function memoryOf(element, panel) {
  const key = `${panel.type}:${panel.id ?? ''}:${panel.title ?? ''}`;
  let memory = memories.get(element);
  if (memory?.key !== key) memories.set(element, (memory = { key, values: {} }));
  return memory.values;
}

/** Call a function at most once a frame. Returns {call, cancel}. */
export function oncePerFrame(work) {
  let handle = 0;
  const run = () => {
    handle = 0;
    work();
  };
  return {
    call() {
      if (!handle) handle = requestAnimationFrame(run);
    },
    cancel() {
      if (handle) cancelAnimationFrame(handle);
      handle = 0;
    },
  };
}
