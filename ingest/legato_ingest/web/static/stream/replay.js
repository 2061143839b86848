// "What this felt like": the stream at true speed beside the same stream without one cause, with play, speed and a place to jump to.
//
// Blocks of the sizes of chunks appear at their times. It runs frames only while it plays, and starts only on request.

import { causeOf } from '../causes.js';
import { el, oncePerFrame } from '../panels/dom.js';
import { visibleText } from '../visible.js';
import { duration, moment, some } from './format.js';
import { contentOf, readerOf, removable, withoutCause } from './replay_model.js';
import { drawReader, Pane } from './replay_panes.js';
import { themeOf, watchTheme } from './theme.js';

const WORDS_PER_SECOND = 4;
const BEFORE_STALL_US = 1_500_000;
const PANE_PX = 150;
const READER_PX = 96;
const STEPS = 2000;

export class Replay {
  constructor(model) {
    this.model = model;
    this.content = contentOf(model.felt);
    this.end = this.content.at.length ? Math.max(model.felt.end, this.content.at.at(-1)) : model.end;
    this.own = model.stalls.filter((stall) => model.vantages[stall.vantage] === model.felt);
    Object.assign(this, { now: 0, speed: 1, playing: false, touched: false, chosen: null });
    this.reader = readerOf(this.content, WORDS_PER_SECOND);
    this.build();
    this.frame = oncePerFrame(() => this.draw());
    this.ends = [watchTheme(() => this.resize())];
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.element);
    this.choose(null);
  }

  build() {
    const canvas = () => el('canvas', 'st-pane', { role: 'img' });
    this.canvases = { was: canvas(), would: canvas(), reader: canvas() };
    this.panes = { was: new Pane(this.canvases.was, this.content), would: new Pane(this.canvases.would, this.content) };
    this.captions = { was: el('figcaption'), would: el('figcaption'), reader: el('figcaption') };
    const figure = (name, className = '') => el('figure', className, {}, [this.captions[name], this.canvases[name]]);
    this.buildControls();
    this.element = el('section', 'st-replay', { 'aria-label': 'What this felt like' }, [
      el('h3', '', { text: 'What this felt like' }), this.controls,
      el('div', 'st-panes', {}, [figure('was'), (this.would = figure('would'))]), figure('reader', 'st-reader'),
    ]);
  }

  buildControls() {
    const button = (text, work, more = {}) => el('button', '', { type: 'button', text, onclick: work, ...more });
    this.play = button('Play', () => this.start());
    this.speeds = [1, 4].map((speed) => button(`${speed}×`, () => this.setSpeed(speed), { 'aria-pressed': String(speed === 1) }));
    this.skip = button('Skip to the stall', () => this.skipToStall());
    this.seek = el('input', 'st-seek', { type: 'range', min: 0, max: STEPS, value: 0, 'aria-label': 'Time of the replay', oninput: () => {
      this.now = (Number(this.seek.value) / STEPS) * this.end;
      this.touched = true;
      this.frame.call();
    } });
    this.clock = el('output', 'st-clock');
    this.controls = el('div', 'st-controls', {}, [this.play, ...this.speeds, this.skip, this.seek, this.clock]);
  }

  destroy() {
    this.playing = false;
    this.frame.cancel();
    cancelAnimationFrame(this.tick);
    this.sizes.disconnect();
    for (const end of this.ends) end();
  }

  /** The stall of the page was chosen: its cause is the one that is left out. */
  choose(stall) {
    // A stall of another response of the trace is not in this replay.
    this.chosen = this.own.includes(stall) ? stall : null;
    this.cause = removable(this.chosen);
    const { label } = causeOf(this.cause);
    this.without = this.cause ? withoutCause(this.content, this.own, this.cause) : null;
    this.would.hidden = !this.without || !this.without.removed_us;
    if (this.without) this.panes.would.setContent(this.without);
    this.skip.disabled = !this.chosen;
    if (!this.touched) this.now = this.chosen ? this.chosen.end_us - 1 : this.end;
    const gain = this.without ? `${duration(this.without.removed_us)} less in ${some(this.without.stalls, 'stall')}` : '';
    const { vantages, felt } = this.model;
    const is_one_of = new Set(vantages.map((vantage) => vantage.response_id)).size > 1;
    this.captions.was.textContent = is_one_of ? `As it was: ${visibleText(felt.response_id || felt.service)}` : 'As it was';
    this.captions.would.textContent = `Without ${label}: ${gain}${this.counted()}`;
    this.captions.reader.textContent = this.readerWords();
    this.resize();
  }

  // The store's counterfactual, which also replays the engine's steps.
  counted() {
    const found = this.model.view.but_for.find((row) => row.cause === this.cause);
    if (!found) return '';
    const left = found.stalls_min === found.stalls_max ? found.stalls_min : `${found.stalls_min} to ${found.stalls_max}`;
    return `. Counterfactual of the store: ${left} of ${some(found.stalls, 'stall')} left`;
  }

  readerWords() {
    if (!this.content.at.length) return 'No content was recorded.';
    const { waits, waited_us: waited } = this.reader;
    const base = `A reader at ${WORDS_PER_SECOND} words per second `;
    const waiting = `waited ${duration(waited)} for text (${some(waits.length, 'wait')}, shaded)`;
    const had = waits.length ? waiting : 'never waited for text after its start';
    if (!this.without || !this.without.removed_us) return `${base}${had}.`;
    const other = readerOf(this.without, WORDS_PER_SECOND).waited_us;
    return `${base}${had}; without ${causeOf(this.cause).label} ${other ? `the waits are ${duration(other)}` : 'there is no wait'}.`;
  }

  // The first time, it plays from the start; before that, the panes show the end of the chosen stall.
  start() {
    if (!this.touched) this.now = 0;
    this.toggle();
  }

  toggle(on = !this.playing) {
    this.playing = on;
    this.touched = true;
    this.play.textContent = on ? 'Pause' : 'Play';
    if (!on) return;
    if (this.now >= this.end) this.now = 0;
    this.last = performance.now();
    this.tick = requestAnimationFrame((at) => this.step(at));
  }

  step(at) {
    if (!this.playing) return;
    this.now = Math.min(this.now + Math.max(at - this.last, 0) * 1e3 * this.speed, this.end);
    this.last = at;
    this.draw();
    if (this.now >= this.end) this.toggle(false);
    else this.tick = requestAnimationFrame((next) => this.step(next));
  }

  setSpeed(speed) {
    this.speed = speed;
    this.speeds.forEach((button) => button.setAttribute('aria-pressed', String(button.textContent === `${speed}×`)));
  }

  skipToStall() {
    if (!this.chosen) return;
    this.now = Math.max(0, this.chosen.start_us - BEFORE_STALL_US);
    this.toggle(true);
  }

  resize() {
    this.width = Math.floor(this.element.clientWidth);
    if (this.width < 40) return;
    this.theme = themeOf(this.element);
    this.frame?.call();
  }

  draw() {
    if (!this.theme) return;
    const wide = (canvas) => Math.floor(canvas.parentElement.clientWidth);
    const stall = this.own.find((each) => each.start_us <= this.now && this.now < each.end_us) || null;
    this.panes.was.draw(this.now, wide(this.canvases.was), PANE_PX, this.theme, stall);
    if (!this.would.hidden) this.panes.would.draw(this.now, wide(this.canvases.would), PANE_PX, this.theme, null);
    const reader = this.canvases.reader;
    drawReader(reader, this.content, this.reader, this.end, this.now, wide(reader), READER_PX, this.theme);
    this.seek.value = String(Math.round((this.now / this.end) * STEPS));
    this.describe(stall);
  }

  describe(stall) {
    const waiting = stall ? ` · waiting for ${duration(this.now - stall.start_us)}, ${causeOf(stall.cause).label}` : '';
    this.clock.textContent = `${moment(this.now, 1e5)} of ${moment(this.end, 1e5)}${waiting}`;
    this.canvases.was.setAttribute('aria-label', `Chunks that had arrived at ${moment(this.now, 1e6)}, as blocks`);
    this.canvases.would.setAttribute('aria-label', `Chunks that would have arrived at ${moment(this.now, 1e6)}, as blocks`);
    this.canvases.reader.setAttribute('aria-label', this.captions.reader.textContent);
  }
}
