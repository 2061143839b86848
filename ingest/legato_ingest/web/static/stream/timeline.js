// The timeline: one canvas with the axis, the vantages, the stalls and the engine's lanes, its minimap, pointer, keys and tooltip.
//
// Each change asks for one frame. This module holds the viewport and the chosen stall, and reports changes of both.

import { el, oncePerFrame } from '../panels/dom.js';
import { drawAxis } from './axis.js';
import { labelStalls, shadeStalls } from './draw_stalls.js';
import { connectPointer } from './gestures.js';
import { drawNames, lanesOf, layout } from './lanes.js';
import { Minimap } from './minimap.js';
import { faded, fitted, themeOf, watchTheme } from './theme.js';
import { linesAt, Tooltip } from './tooltip.js';
import { Viewport } from './viewport.js';

const HELP = 'Arrow keys pan, plus and minus zoom, 0 shows the whole stream, n and p choose the next and the previous stall, '
  + 'Enter shows the chosen stall, Escape clears.';

const HINT = 'Wheel: zoom · drag: pan · shift-drag: zoom to a range · '
  + 'keys: ← → + − 0 (all) n p (stalls) Enter (zoom to the stall) Esc';

export class Timeline {
  /** `on`: {range(viewport), choose(number)}. `label`: the text alternative of the canvas. */
  constructor(model, label, on) {
    Object.assign(this, { model, on, chosen: -1, pointer: null, selection: null });
    this.viewport = new Viewport(model.end);
    this.lanes = lanesOf(model);
    this.canvas = el('canvas', 'st-canvas', { role: 'img', 'aria-label': label });
    this.area = el('div', 'st-area', { tabindex: '0', role: 'group', 'aria-label': `Timeline. ${HELP}` }, [this.canvas]);
    this.minimap = new Minimap(model, this.viewport, () => this.changed());
    const hint = el('p', 'st-hint', { text: HINT, 'aria-hidden': 'true' });
    this.element = el('div', 'st-timeline', {}, [this.minimap.element, this.area, hint]);
    this.tooltip = new Tooltip(this.area);
    // What does not depend on the pointer is drawn here and copied, so that hovering costs little.
    this.base = document.createElement('canvas');
    this.isStale = true;
    this.frame = oncePerFrame(() => this.draw());
    this.ends = [this.connect(), watchTheme(() => this.resize())];
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.element);
  }

  connect() {
    return connectPointer(this.canvas, this.viewport, {
      changed: () => this.changed(),
      hover: (x, y) => this.hover(y === undefined ? null : [x, y]),
      click: (x) => this.click(x),
      selecting: (from, to) => {
        this.selection = to === undefined ? null : [from, to];
        this.frame.call();
      },
    });
  }

  destroy() {
    this.frame.cancel();
    this.sizes.disconnect();
    for (const end of this.ends) end();
  }

  resize() {
    const width = Math.floor(this.element.clientWidth);
    if (width < 40) return;
    this.width = width;
    this.theme = themeOf(this.element);
    this.placed = layout(this.lanes, width);
    Object.assign(this.viewport, { left: this.placed.left, width: width - this.placed.left });
    this.minimap.resize(width, this.placed.left, this.theme);
    this.refresh();
  }

  changed() {
    this.refresh();
    this.on.range(this.viewport);
  }

  hover(pointer) {
    this.pointer = pointer && pointer[0] >= this.viewport.left ? pointer : null;
    this.frame.call();
  }

  click(x) {
    const at = this.viewport.time(x);
    const near = (3 * this.viewport.span) / this.viewport.width;
    const found = this.model.stalls.findIndex((stall) => stall.start_us - near <= at && at <= stall.end_us + near);
    if (found >= 0) this.on.choose(found);
  }

  /** Mark a stall as chosen; with `show`, zoom to it with some time around it. */
  choose(number, show = false) {
    this.chosen = number;
    const stall = this.model.stalls[number];
    if (stall && show) {
      const around = Math.max(0.6 * stall.gap_us, 50_000);
      this.viewport.show(stall.start_us - around, stall.end_us + around);
      this.on.range(this.viewport);
    }
    this.refresh();
  }

  /** Draw everything anew in the next frame. */
  refresh() {
    this.isStale = true;
    this.frame.call();
  }

  draw() {
    if (!this.placed) return;
    if (this.isStale) this.drawBase();
    this.isStale = false;
    const context = fitted(this.canvas, this.width, this.placed.height);
    context.clearRect(0, 0, this.width, this.placed.height);
    context.drawImage(this.base, 0, 0, this.width, this.placed.height);
    this.drawSelection(context);
    this.drawPointer(context);
  }

  drawBase() {
    const { viewport, theme, placed, model } = this;
    const context = fitted(this.base, this.width, placed.height);
    context.clearRect(0, 0, this.width, placed.height);
    drawAxis(context, viewport, theme, { ...placed.axis, bottom: placed.height });
    shadeStalls(context, model.stalls, model.vantages, this.chosen, viewport, placed);
    for (const lane of placed.lanes) {
      if (!lane.reason) lane.draw(context, lane, viewport, theme);
      drawNames(context, lane, placed, theme, this.width);
    }
    labelStalls(context, model.stalls, this.chosen, viewport, placed, theme);
    this.minimap.draw();
  }

  drawSelection(context) {
    if (!this.selection) return;
    const [from, to] = this.selection.map((at) => this.viewport.x(at)).sort((one, other) => one - other);
    context.fillStyle = faded(this.theme.accent.startsWith('#') ? this.theme.accent : '#5599dd', 0.25);
    context.fillRect(from, 0, to - from, this.placed.height);
  }

  drawPointer(context) {
    if (!this.pointer) return this.tooltip.hide();
    const [x, y] = this.pointer;
    context.fillStyle = this.theme.muted;
    context.fillRect(Math.round(x), this.placed.axis.height, 1, this.placed.height - this.placed.axis.height);
    const lane = this.placed.lanes.find((each) => y >= each.title_top - 4 && y < each.top + each.height + 5);
    return this.tooltip.show(linesAt(lane, this.viewport.time(x), this.model.stalls, this.viewport), x, y);
  }
}
