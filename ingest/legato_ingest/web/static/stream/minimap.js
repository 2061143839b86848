// The whole stream in one strip: how many bytes arrived when, the stalls, and the visible range as a window that can be dragged.
//
// The strip itself is drawn once for a size and theme; a frame copies it and draws the window. It handles no keys: those of the timeline
// do the same.

import { causeOf } from '../causes.js';
import { el } from '../panels/dom.js';
import { faded, fitted } from './theme.js';

const HEIGHT_PX = 40;

export class Minimap {
  /** `moved()` is called after the viewport has changed. */
  constructor(model, viewport, moved) {
    Object.assign(this, { model, viewport, moved });
    this.element = el('canvas', 'st-minimap', { 'aria-hidden': 'true' });
    this.strip = document.createElement('canvas');
    this.drag = null;
    this.element.addEventListener('pointerdown', (event) => this.grab(event));
    this.element.addEventListener('pointermove', (event) => this.move(event));
    for (const name of ['pointerup', 'pointercancel']) this.element.addEventListener(name, () => { this.drag = null; });
  }

  x(us) {
    return this.left + ((us - this.viewport.low) / (this.viewport.high - this.viewport.low)) * this.width;
  }

  time(event) {
    const x = event.clientX - this.element.getBoundingClientRect().left - this.left;
    return this.viewport.low + (x / this.width) * (this.viewport.high - this.viewport.low);
  }

  grab(event) {
    const at = this.time(event);
    this.element.setPointerCapture(event.pointerId);
    if (at < this.viewport.from || at > this.viewport.to) {
      this.viewport.show(at - this.viewport.span / 2, at + this.viewport.span / 2);
      this.moved();
    }
    this.drag = at - this.viewport.from;
  }

  move(event) {
    if (this.drag === null) return;
    const from = this.time(event) - this.drag;
    this.viewport.show(from, from + this.viewport.span);
    this.moved();
  }

  /** Draw the strip anew: the size or the theme has changed. */
  resize(total, left, theme) {
    Object.assign(this, { total, left, width: total - left, theme });
    const context = fitted(this.strip, total, HEIGHT_PX);
    context.clearRect(0, 0, total, HEIGHT_PX);
    context.fillStyle = theme.bg;
    context.fillRect(left, 0, this.width, HEIGHT_PX);
    for (const stall of this.model.stalls) {
      context.fillStyle = faded(causeOf(stall.cause).color, 0.65);
      context.fillRect(this.x(stall.start_us), 0, Math.max(this.x(stall.end_us) - this.x(stall.start_us), 1), HEIGHT_PX);
    }
    this.drawDensity(context);
    if (left) {
      context.font = theme.small;
      context.fillStyle = theme.muted;
      context.textBaseline = 'middle';
      context.fillText('whole stream', 2, HEIGHT_PX / 2);
    }
  }

  drawDensity(context) {
    const { at, bytes } = this.model.felt;
    const columns = new Float64Array(Math.ceil(this.width) + 1);
    for (let chunk = 0; chunk < at.length; chunk++) {
      const pixel = Math.max(0, Math.min(columns.length - 1, Math.floor(this.x(at[chunk]) - this.left)));
      columns[pixel] += bytes ? Math.max(bytes[chunk], 1) : 1;
    }
    const most = Math.sqrt(columns.reduce((one, other) => Math.max(one, other), 1));
    context.fillStyle = this.theme.kinds[1];
    columns.forEach((value, pixel) => {
      const height = (Math.sqrt(value) / most) * (HEIGHT_PX - 8);
      if (value) context.fillRect(this.left + pixel, HEIGHT_PX - 2 - height, 1, height);
    });
  }

  /** Draw the window over the strip. */
  draw() {
    const context = fitted(this.element, this.total, HEIGHT_PX);
    context.clearRect(0, 0, this.total, HEIGHT_PX);
    context.drawImage(this.strip, 0, 0, this.total, HEIGHT_PX);
    const [from, to] = [this.x(this.viewport.from), this.x(this.viewport.to)];
    const width = Math.max(to - from, 3);
    context.fillStyle = faded(this.theme.bg.startsWith('#') ? this.theme.bg : '#000000', 0.62);
    context.fillRect(this.left, 0, from - this.left, HEIGHT_PX);
    context.fillRect(from + width, 0, this.left + this.width - from - width, HEIGHT_PX);
    context.strokeStyle = this.theme.accent;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.75, 0.75, width - 1.5, HEIGHT_PX - 1.5);
  }
}
