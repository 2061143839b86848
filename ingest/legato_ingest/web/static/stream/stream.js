// The page of one stream: what it felt like and why. It loads the view, and joins the timeline, the verdict and the replay.
//
// The zoom range and the chosen stall are kept in the page's state (setState, getState). Nothing of the store becomes markup.

import { el } from '../panels/dom.js';
import { causeOf } from '../causes.js';
import { head, stallTable, summary } from './facts.js';
import { keyHandler } from './gestures.js';
import { longestStall, modelOf, WORK_NAMES } from './model.js';
import { Replay } from './replay.js';
import { themeOf } from './theme.js';
import { Timeline } from './timeline.js';
import { showVerdict } from './verdict.js';

const STATE_DELAY_MS = 250;
const PAN_SHARE = 0.15;
const ZOOM = 0.7;

/**
 * Show the stream with this identity in `element`. Returns {destroy()}.
 * `context`: {fetchJson(path, signal), theme, href(path), setState(key, value), getState(key)}; states are texts, null removes one.
 * Rejects with the error of `fetchJson`.
 */
export async function showStream(element, identity, context) {
  const abort = new AbortController();
  element.replaceChildren(el('p', 'st-muted', { role: 'status', text: 'Loading the stream …' }));
  const view = await context.fetchJson(`/api/streams/${encodeURIComponent(identity)}`, abort.signal);
  const page = new Page(element, modelOf(view), context);
  return { destroy: () => { abort.abort(); page.destroy(); } };
}

class Page {
  constructor(element, model, context) {
    Object.assign(this, { model, context, chosen: -1 });
    const on = { range: () => this.keepRange(), choose: (number) => this.choose(number) };
    this.timeline = new Timeline(model, summary(model), on);
    this.replay = new Replay(model);
    this.verdict = el('section', 'st-verdict', { 'aria-label': 'Why it stalled', 'aria-live': 'polite' });
    const below = el('div', 'st-below', {}, [this.verdict, this.replay.element]);
    this.root = el('div', 'st-page', {}, [head(model), this.bar(), this.timeline.element, stallTable(model), below]);
    element.replaceChildren(this.root);
    this.keys = keyHandler(this.actions());
    this.onKey = (event) => (this.root.contains(event.target) || event.target.contains(this.root)) && this.keys(event);
    document.addEventListener('keydown', this.onKey);
    this.timeline.resize();
    this.replay.resize();
    this.restore();
  }

  destroy() {
    clearTimeout(this.timer);
    document.removeEventListener('keydown', this.onKey);
    this.timeline.destroy();
    this.replay.destroy();
    this.root.remove();
  }

  // Buttons for the pointer and for touch; the keys do the same.
  bar() {
    const button = (text, label, work) => el('button', '', { type: 'button', text, 'aria-label': label, title: label, onclick: work });
    return el('div', 'st-bar', {}, [
      button('−', 'Zoom out (−)', () => this.zoom(1 / ZOOM)), button('+', 'Zoom in (+)', () => this.zoom(ZOOM)),
      button('Whole stream', 'Show the whole stream (0)', () => this.whole()),
      button('‹ Stall', 'Previous stall (p)', () => this.step(-1)), button('Stall ›', 'Next stall (n)', () => this.step(1)),
      this.legend(),
    ]);
  }

  legend() {
    const theme = themeOf(document.documentElement);
    const entry = (className, color, text) => {
      const mark = el('span', `st-swatch ${className}`, { 'aria-hidden': 'true' });
      if (color) mark.style.backgroundColor = color;
      return el('li', '', {}, [mark, text]);
    };
    const kinds = new Set(this.model.vantages.flatMap((vantage) => [...new Set(vantage.kind)]));
    const names = { 1: 'text', 2: 'reasoning', 3: 'tool' };
    const entries = Object.entries(names).filter(([kind]) => kinds.has(Number(kind))).map(([, name]) => entry(`st-kind-${name}`, '', name));
    if ([...kinds].some((kind) => !names[kind])) entries.push(entry('st-kind-other', '', 'no content'));
    if (this.model.vantages.some((vantage) => vantage.hold)) entries.push(entry('', theme.hold, 'held by the application'));
    if (this.model.engine.steps) entries.push(...this.workEntries(entry, theme), ...this.lineEntries(entry));
    return el('ul', 'st-legend', { 'aria-label': 'Colours' }, entries);
  }

  workEntries(entry, theme) {
    const { shares } = this.model.engine.steps;
    const used = WORK_NAMES.map((_, work) => shares.some((share, place) => place % 4 === work && share > 0));
    const entries = WORK_NAMES.map((name, work) => entry(work ? '' : 'st-work-decode', work ? theme.work[work] : '', name));
    return entries.filter((_, work) => used[work]);
  }

  lineEntries(entry) {
    return ['running', 'waiting'].map((name, line) => entry(line ? 'st-line-second' : 'st-line-first', '', name));
  }

  actions() {
    const { viewport } = this.timeline;
    const pan = (share) => { viewport.pan(share * viewport.span); this.timeline.changed(); };
    return {
      ArrowLeft: () => pan(-PAN_SHARE), ArrowRight: () => pan(PAN_SHARE),
      '+': () => this.zoom(ZOOM), '=': () => this.zoom(ZOOM), '-': () => this.zoom(1 / ZOOM), '−': () => this.zoom(1 / ZOOM),
      0: () => this.whole(), n: () => this.step(1), p: () => this.step(-1),
      Enter: () => this.chosen >= 0 && this.choose(this.chosen, true),
      Escape: () => this.choose(-1),
    };
  }

  zoom(factor) {
    this.timeline.viewport.zoom(factor);
    this.timeline.changed();
  }

  whole() {
    this.timeline.viewport.reset();
    this.timeline.changed();
  }

  step(by) {
    const { length } = this.model.stalls;
    if (!length) return;
    this.choose(this.chosen < 0 ? (by > 0 ? 0 : length - 1) : Math.min(Math.max(this.chosen + by, 0), length - 1), true);
  }

  /** Choose a stall; -1: none. With `show`, the timeline zooms to it. */
  choose(number, show = false, keep = true) {
    this.chosen = number;
    const stall = this.model.stalls[number] || null;
    this.timeline.choose(number, show);
    this.replay.choose(stall);
    const on = { choose: (other) => this.choose(other, true), show: (other) => this.choose(other, true) };
    showVerdict(this.verdict, this.model, number, { href: this.context.href, on });
    if (number < 0 && this.model.stalls.length) this.clearedVerdict();
    if (keep) this.context.setState('stall', number < 0 ? null : String(number + 1));
  }

  clearedVerdict() {
    const causes = [...new Set(this.model.stalls.map((stall) => causeOf(stall.cause).label))].join(', ');
    this.verdict.replaceChildren(
      el('h3', '', { text: 'Why it stalled' }),
      el('p', 'st-muted', { text: `${this.model.stalls.length} stalls: ${causes}. Choose one in the timeline, or press n.` }),
    );
  }

  keepRange() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const { from, to, isWhole } = this.timeline.viewport;
      this.context.setState('range', isWhole ? null : `${(from / 1e6).toFixed(6)}~${(to / 1e6).toFixed(6)}`);
    }, STATE_DELAY_MS);
  }

  // The range and the stall of the URL; without a stall there, the longest.
  restore() {
    const [from, to] = (this.context.getState('range') || '').split('~').map((text) => Number(text) * 1e6);
    if (from < to) this.timeline.viewport.show(from, to);
    const stall = Number(this.context.getState('stall')) - 1;
    this.choose(this.model.stalls[stall] ? stall : longestStall(this.model.stalls), false, false);
  }
}
