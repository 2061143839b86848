// The pointer and the keys of the timeline: wheel, drag, pinch, selection of a range, hover, click.
//
// It moves the viewport and calls back; it draws nothing and knows no lanes.

const CLICK_PX = 4;
const WHEEL_STEP = 0.0016;
const LINE_PX = 16;
const PINCH_PX = 8;

/**
 * Connect an element. Returns a function that disconnects it.
 * `on`: {changed(), hover(x, y) or hover(null), click(x, y), selecting(from, to) or selecting(null)}.
 */
export function connectPointer(element, viewport, on) {
  const pointer = new Pointer(element, viewport, on);
  const handlers = {
    wheel: (event) => pointer.wheel(event), pointerdown: (event) => pointer.down(event), pointermove: (event) => pointer.move(event),
    pointerup: (event) => pointer.up(event), pointercancel: (event) => pointer.cancel(event), pointerleave: () => on.hover(null),
  };
  for (const [name, handler] of Object.entries(handlers)) element.addEventListener(name, handler, { passive: false });
  return () => Object.entries(handlers).forEach(([name, handler]) => element.removeEventListener(name, handler));
}

class Pointer {
  constructor(element, viewport, on) {
    Object.assign(this, { element, viewport, on, drag: null, down_at: new Map() });
  }

  place(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // Pixels as µs of the visible range.
  us(pixels) {
    return (pixels * this.viewport.span) / this.viewport.width;
  }

  wheel(event) {
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? LINE_PX : 1;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.viewport.pan(this.us(event.deltaX * pixels));
    else this.viewport.zoom(Math.exp(event.deltaY * pixels * WHEEL_STEP), this.viewport.time(this.place(event)[0]));
    this.on.changed();
  }

  down(event) {
    if (event.button !== 0) return;
    const [x] = this.place(event);
    this.down_at.set(event.pointerId, x);
    this.element.setPointerCapture(event.pointerId);
    this.drag = { x, last: x, moved: false, selects: event.shiftKey && this.down_at.size === 1, from: this.viewport.time(x) };
  }

  move(event) {
    const [x, y] = this.place(event);
    if (!this.down_at.has(event.pointerId)) this.on.hover(x, y);
    else if (this.down_at.size === 2) this.pinch(event.pointerId, x);
    else {
      this.down_at.set(event.pointerId, x);
      if (this.drag) this.dragTo(x);
    }
  }

  dragTo(x) {
    this.drag.moved ||= Math.abs(x - this.drag.x) > CLICK_PX;
    if (!this.drag.moved) return;
    this.on.hover(null);
    if (this.drag.selects) {
      this.on.selecting(this.drag.from, this.viewport.time(x));
      return;
    }
    this.viewport.pan(this.us(this.drag.last - x));
    this.drag.last = x;
    this.on.changed();
  }

  // Two fingers zoom around the one that rests.
  pinch(id, x) {
    const other = [...this.down_at].find(([each]) => each !== id)[1];
    const before = Math.max(Math.abs(this.down_at.get(id) - other), PINCH_PX);
    this.viewport.zoom(before / Math.max(Math.abs(x - other), PINCH_PX), this.viewport.time(other));
    this.down_at.set(id, x);
    this.drag = null;
    this.on.changed();
  }

  up(event) {
    const [x, y] = this.place(event);
    const { drag } = this;
    this.cancel(event);
    if (drag?.selects && drag.moved) {
      this.viewport.show(...[drag.from, this.viewport.time(x)].sort((one, other) => one - other));
      this.on.changed();
    } else if (drag && !drag.moved) this.on.click(x, y);
  }

  cancel(event) {
    this.down_at.delete(event.pointerId);
    this.drag = null;
    this.on.selecting(null);
  }
}

const NO_KEYS_IN = new Set(['INPUT', 'SELECT', 'TEXTAREA']);

/** Return a handler of keydown events. `actions`: a function by key; one that returns false did nothing. */
export function keyHandler(actions) {
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || NO_KEYS_IN.has(event.target.tagName)) return;
    // Enter and space belong to the link or button that has the focus.
    if (event.key === 'Enter' && event.target.closest('a, button, summary')) return;
    const action = actions[event.key];
    if (action && action() !== false) event.preventDefault();
  };
}
