// The tooltip of a chart, its vertical line, the selection of a range, and the keys.
//
// It works on pixels: a chart translates them through `describe`. The line of a time chart appears in all time charts of the page.
// It does not change the chart.

import { el, oncePerFrame, swatch } from './dom.js';

const SHARED = 'legato-panel-time';
const MOST_ROWS = 18;
const LEAST_DRAG = 8;

/**
 * Attach the pointer and the keys to a chart's area.
 *
 * `chart`: {area(): {left, top, width, height}, describe(x, y): {x, title, rows: [{color, name, text}], notes: [text]} | null,
 * stops(): [x], onSelect(x1, x2)?, timeAt(x)?, xOf(time)?}. Pixels count from the host's upper left corner.
 */
export function attachHover(host, chart) {
  const line = el('div', 'pn-line', { hidden: true });
  const selection = el('div', 'pn-selection', { hidden: true });
  const tip = el('div', 'pn-tip', { hidden: true, role: 'status' });
  host.append(line, selection);
  document.body.append(tip);
  const state = { host, chart, line, selection, tip, drag: null, x: null, y: null };
  const listeners = listenersOf(state);
  for (const [target, name, handler] of listeners) target.addEventListener(name, handler);
  return {
    hide: () => hide(state),
    destroy() {
      for (const [target, name, handler] of listeners) target.removeEventListener(name, handler);
      state.later.cancel();
      for (const node of [line, selection, tip]) node.remove();
    },
  };
}

function listenersOf(state) {
  state.later = oncePerFrame(() => show(state));
  return [
    [state.host, 'pointermove', (event) => onMove(state, event)],
    [state.host, 'pointerdown', (event) => onDown(state, event)],
    [state.host, 'pointerup', (event) => onUp(state, event)],
    [state.host, 'pointercancel', () => { state.drag = null; hide(state); }],
    [state.host, 'pointerleave', () => hide(state)],
    [state.host, 'blur', () => hide(state)],
    [state.host, 'keydown', (event) => onKey(state, event)],
    [document, SHARED, (event) => onShared(state, event)],
  ];
}

function pointOf(state, event) {
  const box = state.host.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function inArea(state, x, y) {
  const { left, top, width, height } = state.chart.area();
  return x >= left && x <= left + width && y >= top - 4 && y <= top + height + 18;
}

function clampX(state, x) {
  const { left, width } = state.chart.area();
  return Math.min(left + width, Math.max(left, x));
}

function onMove(state, event) {
  [state.x, state.y] = pointOf(state, event);
  if (state.drag !== null) {
    drawSelection(state);
    return;
  }
  if (inArea(state, state.x, state.y)) state.later.call();
  else hide(state);
}

function onDown(state, event) {
  const [x, y] = pointOf(state, event);
  if (event.button !== 0 || !inArea(state, x, y)) return;
  [state.x, state.y] = [x, y];
  if (state.chart.onSelect) {
    state.drag = x;
    state.host.setPointerCapture(event.pointerId);
  }
  state.later.call();
}

function onUp(state, event) {
  if (state.drag === null) return;
  const [from, to] = [state.drag, clampX(state, pointOf(state, event)[0])].sort((left, right) => left - right);
  state.drag = null;
  state.selection.hidden = true;
  if (to - from >= LEAST_DRAG) {
    hide(state);
    state.chart.onSelect(from, to);
  }
}

function drawSelection(state) {
  const [from, to] = [state.drag, clampX(state, state.x)].sort((left, right) => left - right);
  state.selection.hidden = to - from < LEAST_DRAG;
  if (!state.selection.hidden) state.tip.hidden = true;
  place(state, state.selection, from);
  state.selection.style.width = `${to - from}px`;
}

function place(state, node, x) {
  const { top, height } = state.chart.area();
  node.style.left = `${x}px`;
  node.style.top = `${top}px`;
  node.style.height = `${height}px`;
}

function onKey(state, event) {
  const stops = state.chart.stops();
  if (event.key === 'Escape') hide(state);
  if (!stops.length || !['ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(event.key)) return;
  event.preventDefault();
  const { top, height } = state.chart.area();
  state.x = nextStop(stops, state.line.hidden ? null : state.x, event.key);
  state.y = top + height / 3;
  show(state);
}

function nextStop(stops, x, key) {
  if (key === 'Home') return stops[0];
  if (key === 'End') return stops.at(-1);
  if (x === null) return key === 'ArrowLeft' ? stops.at(-1) : stops[0];
  if (key === 'ArrowRight') return stops.find((stop) => stop > x + 0.01) ?? stops.at(-1);
  return stops.findLast((stop) => stop < x - 0.01) ?? stops[0];
}

function onShared(state, event) {
  const { source, time } = event.detail;
  if (source === state.host || !state.chart.xOf) return;
  const x = time === null ? null : state.chart.xOf(time);
  state.line.hidden = x === null;
  if (x !== null) place(state, state.line, x);
}

function share(state, time) {
  if (state.chart.timeAt) document.dispatchEvent(new CustomEvent(SHARED, { detail: { source: state.host, time } }));
}

function hide(state) {
  state.later.cancel();
  if (state.drag === null) state.selection.hidden = true;
  if (state.tip.hidden && state.line.hidden) return;
  state.tip.hidden = true;
  state.line.hidden = true;
  share(state, null);
}

function show(state) {
  const content = state.chart.describe(state.x, state.y);
  if (!content) {
    hide(state);
    return;
  }
  state.x = state.chart.snaps === false ? state.x : content.x;
  state.line.hidden = false;
  place(state, state.line, content.x);
  fill(state.tip, content);
  state.tip.hidden = false;
  moveTip(state);
  share(state, state.chart.timeAt ? state.chart.timeAt(content.x) : null);
}

function fill(tip, { title, rows, notes = [] }) {
  const shown = rows.slice(0, MOST_ROWS).map(({ color, name, text }) => {
    const parts = [el('span', 'pn-tip-name', { text: name }), el('span', 'pn-tip-value', { text })];
    return el('div', 'pn-tip-row', {}, [color ? swatch(color) : null, ...parts]);
  });
  if (rows.length > MOST_ROWS) shown.push(el('div', 'pn-tip-more', { text: `and ${rows.length - MOST_ROWS} more` }));
  const remarks = notes.map((text) => el('div', 'pn-tip-note', { text }));
  tip.replaceChildren(el('div', 'pn-tip-title', { text: title }), ...shown, ...remarks);
}

/** Put the tooltip beside the line, on the side with more room, inside the window. */
function moveTip(state) {
  const box = state.host.getBoundingClientRect();
  const [width, height] = [state.tip.offsetWidth, state.tip.offsetHeight];
  const x = box.left + state.x;
  const right = x + 14 + width <= document.documentElement.clientWidth;
  const left = right ? x + 14 : Math.max(4, x - 14 - width);
  const top = Math.min(box.top + state.y + 12, document.documentElement.clientHeight - height - 6);
  state.tip.style.left = `${left}px`;
  state.tip.style.top = `${Math.max(4, top)}px`;
}
