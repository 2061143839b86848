"""Times, frames and memory of the web page in Debian's Chromium.

    python bench/page.py --store /tmp/page_store --fill-only
    python bench/page.py --store /tmp/page_store

All times are measured in the browser (`common/page_probe.py`) on pages of a `legato serve` on the same machine. The first two parts drive
Chromium without Playwright, which makes a first visit slower (`common/page_plain.py`). `--only` measures some of the four parts:

- `first`: dashboard Streams over 3,000 streams. For each of several starts of `legato serve`: the first visit after "ready"; then in a
  new browser context a visit without a cache (cold), a second, and a third (warm: Chromium keeps the compiled scripts of the second).
  Measured from the start of the navigation: First Contentful Paint (the header), and the first panel with data painted.
- `dashboards`: every dashboard over a large store, which `bench/panels.py` fills and can share (its `--store`). Time from the start of
  the navigation until the last visible panel is painted, at 1280×900 and with all panels visible (1280×6000; closed rows stay closed),
  over the dashboard's own range and over 24 h, both ending at the newest stream: a first visit in a new context, then five more. The
  first visit at 1280×900 is also the first of `legato serve` for its queries.
- `stream`: frames per second while zooming, dragging and hovering in a stream of 65,536 chunks at three vantages with ten minutes of
  engine steps, with one event in every animation frame; and the time from a key, a turn of the wheel or a move of the pointer to its
  painted answer in an ordinary stream, with single inputs through Chromium's own input handling.
- `memory`: 200 navigations inside one tab, by links of the header and the search for a stream: JS heap, DOM nodes and listeners after a
  garbage collection at navigations 20, 110 and 200, on the same dashboard each time.

Last line: JSON with `first`, `dashboards`, `stream` and `memory`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import httpx
from playwright.sync_api import Browser, Page

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, median, quantile  # noqa: E402
from bench.common.page_plain import plain_browser  # noqa: E402
from bench.common.page_probe import (  # noqa: E402
    Drawn,
    Memory,
    browser,
    inputs,
    load,
    load_plain,
    memory,
    painted,
    plain_tab,
    played,
    reset,
    tab,
)
from bench.common.page_stores import Small, fill_small  # noqa: E402
from helpers.servers.ports import free_port  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402
from legato_ingest.dashboards.files import load as load_boards  # noqa: E402
from legato_ingest.web.panel_queries import Boards  # noqa: E402

PARTS = ("first", "dashboards", "stream", "memory")
HEIGHTS = {"visible": 900, "all": 6_000}
RUNS, STARTS, NAVIGATIONS = 5, 12, 200
SAMPLED = (20, 110, 200)
HOUR_MS = 3_600_000
CANVAS = ".st-canvas"
QUIET = {"LEGATO_CHUNKING_EVERY_S": "1000000", "LEGATO_RETENTION_DAYS": "0"}


@contextlib.contextmanager
def page_of(store: pathlib.Path) -> Iterator[tuple[str, Served]]:
    """Run `legato serve` on a store and yield the address of its page."""
    port = free_port()
    with serve_process(store, LEGATO_WEB_PORT=str(port), **QUIET) as served:
        yield f"http://127.0.0.1:{port}", served


def summary(times: Sequence[float]) -> dict[str, float]:
    """p50, p95 and maximum, with n."""
    return {"p50": round(median(times), 1), "p95": round(quantile(times, 0.95), 1), "max": round(max(times), 1), "n": len(times)}


def shown(name: str, times: Sequence[float], unit: str = "ms") -> None:
    """Print the summary of a name's values."""
    found = summary(times)
    print(f"  {name:44} p50 {found['p50']:7,.0f}  p95 {found['p95']:7,.0f}  max {found['max']:7,.0f} {unit}  n={len(times)}", flush=True)


def measure_first(store: pathlib.Path) -> dict[str, Any]:
    """First Contentful Paint and first panel with data, over several starts of the server."""
    visits: dict[str, list[Drawn]] = {"after_ready": [], "cold": [], "second": [], "warm": []}
    with plain_browser() as running:
        for _ in range(STARTS):
            with page_of(store) as (url, _served):
                with plain_tab(running) as page:
                    visits["after_ready"].append(load_plain(page, f"{url}/"))
                with plain_tab(running) as page:
                    for kind in ("cold", "second", "warm"):
                        visits[kind].append(load_plain(page, f"{url}/"))
    found = {}
    for kind, drawn in visits.items():
        firsts = [each.first_ms for each in drawn if each.first_ms is not None]
        if len(firsts) != len(drawn):
            raise SystemExit("a visit drew no panel with data: the small store is too old, fill it again")
        paints = [each.fcp_ms for each in drawn]
        shown(f"first contentful paint, {kind}", paints)
        shown(f"first panel with data, {kind}", firsts)
        found[kind] = {"fcp_ms": summary(paints), "first_panel_ms": summary(firsts)}
    return found


def newest_ms(served: Served) -> int:
    """The start of the newest stream."""
    sql = "SELECT max(toUnixTimestamp64Milli(start_time)) FROM stream_revs"
    return int(httpx.post(served.read, content=sql, timeout=120).text)


def any_stream(served: Served, until_ms: int) -> str:
    """The trace id of a stream with a verdict."""
    sql = f"SELECT lower(hex(any(trace_id))) FROM verdicts WHERE start_time BETWEEN toDateTime({until_ms // 1000 - 5_400}) AND now()"
    return httpx.post(served.read, content=sql, timeout=120).text.strip()


def hours_of(board: dict[str, Any]) -> float:
    """The length of a dashboard's own range in hours."""
    text = board["time"]["from"].removeprefix("now-")
    return float(text[:-1]) * {"m": 1 / 60, "h": 1, "d": 24}[text[-1]]


def measure_dashboards(store: pathlib.Path, uids: Sequence[str]) -> dict[str, Any]:
    """All dashboards at both heights over both ranges."""
    first: dict[str, list[float]] = {height: [] for height in HEIGHTS}
    warm: dict[tuple[str, str], list[float]] = {}
    replies: list[float] = []
    by_board: dict[str, Any] = {}
    with page_of(store) as (url, served), plain_browser() as running:
        end_ms = newest_ms(served)
        stream = any_stream(served, end_ms)
        boards = Boards(load_boards(ROOT / "dashboards")).by_uid
        for uid in uids or boards:
            board = boards[uid]
            cold: list[float] = []
            for hours in sorted({hours_of(board), 24.0}):
                span = f"from={end_ms - round(hours * HOUR_MS)}&to={end_ms}&refresh=&var-stream={stream}"
                for kind, height in HEIGHTS.items():
                    with plain_tab(running, height=height) as page:
                        visits = [load_plain(page, f"{url}/d/{uid}?{span}") for _ in range(1 + RUNS)]
                    first[kind].append(visits[0].drawn_ms)
                    cold.append(visits[0].drawn_ms)
                    warm.setdefault((uid, kind), []).extend(each.drawn_ms for each in visits[1:])
                    replies += [each.replies_ms / each.drawn_ms for each in visits[1:] if each.queries]
                    last = visits[-1]
                    print(
                        f"  {uid} {hours:g} h {kind}: {last.panels} panels, {last.empty} empty, {last.queries} queries, first"
                        f" {visits[0].drawn_ms:.0f} ms, then {', '.join(f'{each.drawn_ms:.0f}' for each in visits[1:])} ms,"
                        f" last reply {median([each.replies_ms for each in visits[1:]]):.0f} ms"
                        f"{''.join(f'; FAILED: {message}' for message in last.failed)}",
                        flush=True,
                    )
            by_board[uid] = {kind: summary(warm[uid, kind]) for kind in HEIGHTS} | {"first_ms": summary(cold)}
    for (uid, kind), times in sorted(warm.items(), key=lambda item: -max(item[1])):
        shown(f"{uid}, {kind}", times)
    totals = {kind: [took for (_, own), times in warm.items() if own == kind for took in times] for kind in HEIGHTS}
    for kind in HEIGHTS:
        shown(f"all dashboards, {kind}", totals[kind])
        shown(f"all dashboards, {kind}, first visits", first[kind])
    return {
        "warm_ms": {kind: summary(times) for kind, times in totals.items()},
        "first_ms": {kind: summary(times) for kind, times in first.items()},
        "last_reply_share_p50": round(median(replies), 2),
        "by_board": by_board,
    }


def measure_stream(running: Browser, store: pathlib.Path, small: Small) -> dict[str, Any]:
    """Frames of the longest stream and interactions of an ordinary one."""
    with page_of(store) as (url, _served), tab(running) as page:
        opened = {name: [painted(page, f"{url}/stream/{trace}") for _ in range(RUNS)] for name, trace in _traces(small).items()}
        painted(page, f"{url}/stream/{small.longest}")
        frames: dict[str, list[float]] = {"zoom": [], "drag": [], "hover": []}
        for _ in range(3):
            frames["zoom"] += zoom(page)
            frames["drag"] += drag(page)
            frames["hover"] += hover(page)
        took = list[tuple[str, float]]()
        painted(page, f"{url}/stream/{small.ordinary}")
        interact(page, took)
    for name, times in opened.items():
        shown(f"a stream's page until its timeline is painted, {name}", times)
    for name, times in frames.items():
        shown(f"ms between frames, {name}", times)
    for name in sorted({name for name, _ in took}):
        shown(f"input to its painted answer, {name}", [each for own, each in took if own == name])
    shown("input to its painted answer, all", [each for _, each in took])
    return {
        "open_ms": {name: summary(times) for name, times in opened.items()},
        "frames": {name: frame_rates(times) for name, times in frames.items()},
        "interaction_ms": summary([each for _, each in took]),
    }


def _traces(small: Small) -> dict[str, str]:
    return {"longest": small.longest, "ordinary": small.ordinary}


def frame_rates(times: Sequence[float]) -> dict[str, float]:
    """Frames per second: median and p5, and the longest frame."""
    slow = quantile(times, 0.95)
    return {"fps_p50": round(1e3 / median(times), 1), "fps_p5": round(1e3 / slow, 1), "longest_ms": round(max(times), 1), "n": len(times)}


def middle(page: Page) -> tuple[float, float]:
    """The middle of the timeline, brought into view."""
    canvas = page.locator(CANVAS)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, min(box["y"] + 120, 880.0)


def zoom(page: Page) -> list[float]:
    """From the whole stream to half a second of it, and back."""
    page.keyboard.press("0")
    x, y = middle(page)
    return played(page, CANVAS, [("wheel", x, y, notch) for notch in (-40, 40) for _ in range(110)])


def drag(page: Page) -> list[float]:
    """Pan by 240 pixels and back, with nearly the whole stream visible, with a tenth and with a hundredth of it."""
    times = []
    for notches in (2, 12, 15):
        x, y = middle(page)
        played(page, CANVAS, [("wheel", x, y, -100)] * notches)
        page.mouse.move(x, y)
        page.mouse.down()
        times += played(page, CANVAS, [("pointermove", x + 4 * min(place, 120 - place), y, 0) for place in range(120)])
        page.mouse.up()
    return times


def hover(page: Page) -> list[float]:
    """Move the pointer over the stream, which moves the tooltip."""
    page.keyboard.press("0")
    x, y = middle(page)
    return played(page, CANVAS, [("pointermove", x - 300 + 5 * place, y, 0) for place in range(120)])


def interact(page: Page, into: list[tuple[str, float]]) -> None:
    """One input at a time: wheel, keys that pan, zoom and choose stalls, and the pointer."""
    x, y = middle(page)
    with inputs(page, into):
        for number in range(12):
            for key in ("ArrowRight", "+", "ArrowLeft", "-", "n", "p", "Enter", "0"):
                page.keyboard.press(key)
                page.wait_for_timeout(60)
            for notches in (-100, -100, 100, 100):
                page.mouse.wheel(0, notches)
                page.wait_for_timeout(60)
            page.mouse.move(x - 100 + 20 * number, y)
            page.wait_for_timeout(60)


def measure_memory(running: Browser, store: pathlib.Path, small: Small) -> dict[str, Any]:
    """Heap, nodes and listeners of one tab. Every tenth navigation leads to the dashboard Streams, where they are read."""
    found: dict[int, Memory] = {}
    streams = [small.ordinary, *small.others, small.longest]
    with page_of(store) as (url, _served), tab(running) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        load(page, f"{url}/")
        names = [name for name in page.locator("#boards a").all_inner_texts() if name != "Streams"]
        started, others = time.monotonic(), 0
        for number in range(1, NAVIGATIONS + 1):
            if number % 10 == 0:
                follow(page, "Streams")
            elif number % 3 == 0:
                search(page, streams[number // 3 % len(streams)])
            else:
                follow(page, names[others % len(names)])
                others += 1
            if number in SAMPLED:
                page.wait_for_timeout(1_000)
                found[number] = memory(session)
                print(f"  after {number} navigations: {found[number]}", flush=True)
        took_s = time.monotonic() - started
    first = found[SAMPLED[0]]
    growth = {
        "heap": max(each.heap_mb for each in found.values()) / first.heap_mb - 1,
        "nodes": max(each.nodes for each in found.values()) / first.nodes - 1,
        "listeners": max(each.listeners for each in found.values()) / first.listeners - 1,
    }
    print(f"  {NAVIGATIONS} navigations in {took_s:.0f} s; growth {', '.join(f'{name} {share:+.1%}' for name, share in growth.items())}")
    return {
        "after": {str(number): asdict(each) for number, each in found.items()},
        "growth": {name: round(share, 3) for name, share in growth.items()},
        "navigations": NAVIGATIONS,
    }


def follow(page: Page, name: str) -> None:
    """Follow a link of the header and wait until the page is drawn."""
    reset(page)
    page.locator("#boards a").get_by_text(name, exact=True).click()
    settle(page)


def search(page: Page, trace: str) -> None:
    """Open a stream by the search in the header."""
    reset(page)
    page.locator("#find input").fill(trace)
    page.locator("#find input").press("Enter")
    page.locator(".st-page").wait_for()
    page.locator(".st-verdict").get_by_text("because").first.wait_for()


def settle(page: Page) -> None:
    """Wait until the page has content and nothing loads any more."""
    page.locator("main > *").first.wait_for()
    page.wait_for_timeout(250)
    page.locator(".panel.loading").first.wait_for(state="detached", timeout=60_000)
    page.wait_for_timeout(50)


def fill_large(folder: pathlib.Path, streams: int) -> None:
    """Fill the large store up to this number of streams, in processes like those of `bench/panels.py`."""
    filled = folder / "filled"
    have, first = int(filled.read_text()) if filled.exists() else 0, 0
    for last in (streams // 10, streams):
        if have < last:
            words = ["--streams", str(streams), "--fill", str(folder / "store"), str(first), str(last)]
            subprocess.run([sys.executable, str(ROOT / "bench" / "panels.py"), *words], check=True)
            filled.write_text(str(last))
        first = last


def main() -> None:
    """Fill what is not filled yet, and measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--streams", type=int, default=10_000_000, help="streams in the large store")
    options.add_argument("--store", type=pathlib.Path, help="keep the large store in this folder; a filled one is used as it is")
    options.add_argument("--fill-only", action="store_true", help="fill the large store and end")
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to measure")
    options.add_argument("--boards", nargs="+", metavar="UID", default=(), help="measure these dashboards instead of all")
    given = options.parse_args()
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        large = given.store or scratch / "large"
        large.mkdir(parents=True, exist_ok=True)
        if "dashboards" in given.only or given.fill_only:
            started = time.monotonic()
            fill_large(large, given.streams)
            print(
                f"{(large / 'filled').read_text().strip()} streams in the large store, {time.monotonic() - started:.0f} s to fill",
                flush=True,
            )
        if given.fill_only:
            return
        small = fill_small(scratch / "small", random.Random(5))
        running = stack.enter_context(browser())
        print(f"{describe('chdb', 'playwright')}, Chromium {running.version}; {small.streams:,} streams in the small store", flush=True)
        measures = {
            "first": lambda: measure_first(scratch / "small"),
            "dashboards": lambda: measure_dashboards(large / "store", given.boards),
            "stream": lambda: measure_stream(running, scratch / "small", small),
            "memory": lambda: measure_memory(running, scratch / "small", small),
        }
        for part in PARTS:
            if part in given.only:
                print(f"{part}:", flush=True)
                found[part] = measures[part]()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
