// The visible range of the time axis: zooming, panning, and the mapping between times and pixels.
//
// Times are µs since the start of the axis, pixels are CSS pixels of the canvas. This module draws nothing.

const SPAN_MIN_US = 500;
const MARGIN = 0.02;

export class Viewport {
  /** `end`: the last moment of the stream. A small margin on both sides can be shown, too. */
  constructor(end) {
    this.low = -MARGIN * end;
    this.high = (1 + MARGIN) * end;
    this.left = 0;
    this.width = 1;
    this.reset();
  }

  reset() {
    [this.from, this.to] = [this.low, this.high];
  }

  get span() {
    return this.to - this.from;
  }

  get isWhole() {
    return this.from <= this.low && this.to >= this.high;
  }

  /** Show a range; one that is too short or leaves the axis is moved. */
  show(from, to) {
    const span = Math.min(Math.max(to - from, SPAN_MIN_US), this.high - this.low);
    const start = Math.min(Math.max(from + (to - from - span) / 2, this.low), this.high - span);
    [this.from, this.to] = [start, start + span];
  }

  /** Zoom by a factor (below 1: in) around a moment, which keeps its place. */
  zoom(factor, around = (this.from + this.to) / 2) {
    const span = Math.min(Math.max(this.span * factor, SPAN_MIN_US), this.high - this.low);
    const place = (around - this.from) / this.span;
    const start = Math.min(Math.max(around - place * span, this.low), this.high - span);
    [this.from, this.to] = [start, start + span];
  }

  pan(us) {
    this.show(this.from + us, this.to + us);
  }

  x(us) {
    return this.left + ((us - this.from) / this.span) * this.width;
  }

  time(x) {
    return this.from + ((x - this.left) / this.width) * this.span;
  }
}
