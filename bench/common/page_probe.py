"""Measures the web page inside Chromium: when it paints, draws its panels and answers an input, its frames, and its memory.

A script that runs before those of the page notes the times; the page's content security policy does not apply to it. It changes nothing
that the page does. "Painted" is the first task after the next animation frame.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page

from bench.common.page_plain import PlainBrowser, PlainTab
from helpers.platform.browser import chromium

__all__ = [
    "Drawn",
    "Event",
    "Memory",
    "browser",
    "inputs",
    "load",
    "load_plain",
    "memory",
    "painted",
    "plain_tab",
    "played",
    "reset",
    "tab",
]

Event = tuple[str, float, float, float]
"""The type of an event, its place in the window, and how far the wheel turns."""

_PROBE = """(() => {
  const DATA = ['.main-svg', 'canvas', '.pn-table tbody td', '.pn-stat-value:not(.pn-stat-missing)'];
  const FIGURE = `.panel:not(.panel-text) .body :is(${DATA}), .st-canvas`;
  const probe = { first: null, drawn: null, inputs: null };
  window.legatoBench = probe;
  const { port1, port2 } = new MessageChannel();
  const waiting = [];
  port1.onmessage = () => waiting.splice(0).forEach((done) => done(performance.now()));
  const painted = (done) => requestAnimationFrame(() => { waiting.push(done); port2.postMessage(0); });
  const isPanel = ({ type, target }) => type === 'attributes' && target.classList.contains('panel');
  let searching = false;
  new MutationObserver((records) => {
    if (probe.first === null && !searching && document.querySelector(FIGURE)) {
      searching = true;
      painted((at) => { probe.first = at; searching = false; });
    }
    if (!records.some(isPanel) || document.querySelector('.panel.loading')) return;
    painted((at) => { if (!document.querySelector('.panel.loading')) probe.drawn = at; });
  }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ['class'] });
  const note = (event) => probe.inputs && painted((at) => probe.inputs?.push([event.type, at - event.timeStamp]));
  const early = { capture: true, passive: true };
  for (const name of ['wheel', 'keydown', 'pointermove']) document.addEventListener(name, note, early);
  // One event per animation frame, so that every frame draws: the times of the frames.
  probe.play = async (selector, events) => {
    const canvas = document.querySelector(selector);
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const times = [await frame()];
    for (const [type, x, y, deltaY] of events) {
      const at = { clientX: x, clientY: y, bubbles: true, cancelable: true };
      canvas.dispatchEvent(type === 'wheel' ? new WheelEvent(type, { ...at, deltaY }) : new PointerEvent(type, { ...at, pointerId: 1 }));
      times.push(await frame());
    }
    return times;
  };
})();"""
# Resolves when no panel has begun to load for `quiet` ms, or rejects.
_DRAWN = """async ([quiet, most]) => {
  const probe = window.legatoBench;
  const isDone = () => probe.drawn !== null && performance.now() - probe.drawn > quiet && !document.querySelector('.panel.loading');
  const deadline = performance.now() + most;
  while (!isDone() && performance.now() < deadline) await new Promise((done) => setTimeout(done, 25));
  const replies = performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/api/query'));
  const ends = replies.map(({ responseEnd }) => responseEnd);
  return {
    fcp_ms: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null,
    first_ms: probe.first, drawn_ms: isDone() ? probe.drawn : null, replies_ms: Math.max(0, ...ends), queries: ends.length,
    failed: [...document.querySelectorAll('.failed, .pn-error, .pn-reason')].map((each) => each.textContent),
    panels: document.querySelectorAll('.panel').length, empty: document.querySelectorAll('.panel .pn-message').length,
  };
}"""
_FIRST = """async (most) => {
  const probe = window.legatoBench;
  while (probe.first === null && performance.now() < most) await new Promise((done) => setTimeout(done, 25));
  return probe.first;
}"""
_QUIET_MS, _LOAD_MS_MAX = 400, 60_000


@dataclass(frozen=True)
class Drawn:
    """Milliseconds since the start of a navigation, and what was drawn.

    ``fcp_ms``: First Contentful Paint of the Performance API; ``first_ms``: the first panel with data painted, None without one;
    ``replies_ms``: the last reply to a panel's query; ``drawn_ms``: the last visible panel painted. ``empty``: panels without data;
    ``failed``: the messages of panels that could not be drawn.
    """

    fcp_ms: float
    first_ms: float | None
    replies_ms: float
    drawn_ms: float
    queries: int
    panels: int
    empty: int
    failed: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """What a tab uses after a garbage collection."""

    heap_mb: float
    nodes: int
    listeners: int


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A running Chromium. Raises ``SystemExit`` where none is installed."""
    if shutil.which("chromium") is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    with chromium() as running:
        yield running


@contextlib.contextmanager
def tab(running: Browser, *, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """An empty tab with its own storage and cache, and with the probe."""
    context = running.new_context(viewport={"width": width, "height": height}, color_scheme="dark")
    context.add_init_script(_PROBE)
    try:
        yield context.new_page()
    finally:
        context.close()


def load(page: Page, url: str) -> Drawn:
    """Navigate to a dashboard and wait until its visible panels are drawn. Raises ``SystemExit`` if they are not."""
    page.goto(url)
    return _drawn(url, page.evaluate(_DRAWN, [_QUIET_MS, _LOAD_MS_MAX]))


@contextlib.contextmanager
def plain_tab(running: PlainBrowser, *, width: int = 1280, height: int = 900) -> Iterator[PlainTab]:
    """A tab like that of ``tab`` without Playwright."""
    with running.tab(_PROBE, width, height) as opened:
        yield opened


def load_plain(page: PlainTab, url: str) -> Drawn:
    """Do the same as ``load`` without Playwright."""
    page.go(url)
    return _drawn(url, page.evaluate(f"({_DRAWN})([{_QUIET_MS}, {_LOAD_MS_MAX}])"))


def _drawn(url: str, found: dict[str, Any]) -> Drawn:
    if found["drawn_ms"] is None or found["fcp_ms"] is None:
        raise SystemExit(f"{url} was not drawn: {found}")
    return Drawn(**{**found, "failed": tuple(found["failed"])})


def painted(page: Page, url: str) -> float:
    """Navigate to a stream and return the milliseconds until its timeline is painted."""
    page.goto(url)
    took = page.evaluate(_FIRST, _LOAD_MS_MAX)
    if took is None:
        raise SystemExit(f"{url} was not drawn: {page.locator('main').inner_text()[:300]}")
    return float(took)


def reset(page: Page) -> None:
    """Forget what was drawn, before a navigation inside the page."""
    page.evaluate("() => { Object.assign(window.legatoBench, { first: null, drawn: null }); }")


def played(page: Page, selector: str, events: Sequence[Event]) -> list[float]:
    """Dispatch one event per animation frame on an element and return the milliseconds between the frames.

    The timeline draws in the frame after an event, so every frame has an event and a drawing. Only the capture of
    the pointer is different from real input: a drag needs a button that Chromium itself has pressed.
    """
    times: list[float] = page.evaluate("([selector, events]) => window.legatoBench.play(selector, events)", [selector, list(events)])
    return [after - before for before, after in zip(times[1:], times[2:], strict=False)]


@contextlib.contextmanager
def inputs(page: Page, into: list[tuple[str, float]]) -> Iterator[None]:
    """Note each input of a time in ``into``: its event, and the milliseconds from the event to the painted answer."""
    page.evaluate("() => { window.legatoBench.inputs = []; }")
    yield
    into += [(str(name), float(took)) for name, took in page.evaluate("() => window.legatoBench.inputs.splice(0)")]


def memory(session: CDPSession) -> Memory:
    """Collect garbage and read what is left."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    values = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return Memory(values["JSHeapUsedSize"] / 1e6, int(values["Nodes"]), int(values["JSEventListeners"]))
