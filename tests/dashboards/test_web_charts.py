"""The modules that draw charts, in a real browser: the ticks of an axis, the settings of a series, and the rows of a heatmap."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from helpers.platform.browser import opened
from helpers.servers.web import BOARDS, web_page
from legato_ingest.storage import Store
from legato_ingest.web.static_files import version

TICKS_MAX = 20
# An endless loop in the page must end the test, not wait for it.
LOOP_MS_MAX = 30_000
MINUTE_MS, BEGIN_MS = 60_000, 1_700_000_000_000
_AXES = """async ([module, cases]) => {
  const { valueAxis } = await import(module);
  return cases.map(([extent, unit, options]) => valueAxis(extent, unit, 200, options));
}"""
_DRAW = """async ([module, panel, frames, span]) => {
  const { drawPanel } = await import(module);
  document.querySelector('main').innerHTML = '<div id="chart" class="body"></div>';
  const element = document.getElementById('chart');
  Object.assign(element.style, { width: '700px', height: '400px' });
  const context = { span, interval_ms: 60000, variables: {}, theme: 'dark', annotations: [], href: (url) => url };
  await drawPanel(element, panel, frames, context);
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, unfilled: Store) -> Iterator[Page]:
    """A page that can import the modules of the charts."""
    with web_page(unfilled) as address, opened(browser, f"{address}/sql") as (shown, _):
        yield shown


def module(name: str) -> str:
    """The address of a module of the panels."""
    return f"/static/{version()}/panels/{name}.js"


def axes(page: Page, *cases: tuple[tuple[float, float], str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The axes that the page computes for these extents, units and options."""
    found: list[dict[str, Any]] = page.wait_for_function(_AXES, arg=[module("axes"), cases], timeout=LOOP_MS_MAX).json_value()
    return found


def draw(page: Page, panel: dict[str, Any], columns: dict[str, tuple[str, list[Any]]]) -> None:
    """Draw a panel from one frame: its columns with their types and values. The first column has the times."""
    times: list[int] = next(iter(columns.values()))[1]
    frame = {"columns": [{"name": name, "type": kind, "values": values} for name, (kind, values) in columns.items()], "rows": len(times)}
    page.evaluate(_DRAW, [module("index"), panel, [frame], {"from_ms": times[0], "to_ms": times[-1] + MINUTE_MS}])


def texts(page: Page, selector: str) -> list[str]:
    """The texts of the drawn ticks that a selector finds."""
    return page.locator(f"#chart {selector}").all_text_contents()


def board_panel(uid: str, title: str) -> dict[str, Any]:
    """A panel of a dashboard."""
    (board,) = (each for each in BOARDS if each["uid"] == uid)
    every = [part for panel in board["panels"] for part in (panel, *(panel.get("panels") or ()))]
    (found,) = (panel for panel in every if panel.get("title") == title)
    return dict(found)


def neighbours(rng: random.Random) -> tuple[float, float]:
    """Two numbers of any size, at most a few roundings apart."""
    low = rng.choice((-1, 1)) * rng.uniform(0.1, 1) * 10.0 ** rng.randrange(-12, 13)
    high = low
    for _ in range(rng.randrange(1, 6)):
        high = math.nextafter(high, math.inf)
    return low, high


def test_less_than_all_is_less_than_100_percent(page: Page) -> None:
    """With a target of 99.95 % the figure decides whether the budget is spent."""
    write = """async ([module, values]) => {
      const { formatNumber } = await import(module);
      return values.map((value) => formatNumber(value, 'percentunit', { decimals: 1 }));
    }"""
    shown = page.evaluate(write, [module("units"), [0.9, 0.9994, 0.9997, 0.999999, 1, 1.5, -0.2]])
    assert shown == ["90.0%", "99.9%", "99.97%", "99.99%", "100.0%", "150.0%", "-20.0%"]


def test_ticks_are_few_and_increase(page: Page) -> None:
    """Also where all values differ by rounding only, or are as large or as small as a number can be, or a limit is below them."""
    pairs = [(0.3, 0.30000000000000004), (71.3, 71.30000000000001), (50.0, 50.00000000000001), (1965e6, 1965e6 + 2.4e-7)]
    pairs += [(0.0, 1.79e308), (-1.79e308, 1.79e308), (5e-324, 1e-323), (-5e-324, 0.0), (0.0, 0.0), (1e-290, 1.1e-290), (1e17, 1e17 + 64)]
    rng = random.Random(7)
    pairs += [neighbours(rng) for _ in range(300)]
    options: list[dict[str, Any]] = [{}, {"fromZero": True}, {"limits": {"min": 1e17}}, {"limits": {"min": 0, "max": 1}}]
    cases = [(pair, unit, more) for pair in pairs for unit in ("percentunit", "short", "s", "bytes", "hertz") for more in options]
    for case, axis in zip(cases, axes(page, *cases), strict=True):
        ticks, (bottom, top) = axis["ticks"], axis["range"]
        assert 1 <= len(ticks) <= TICKS_MAX and len(axis["texts"]) == len(ticks), (case, axis)
        assert all(map(math.isfinite, (*ticks, bottom, top))) and bottom < top, (case, axis)
        assert all(before < after for before, after in zip(ticks, ticks[1:], strict=False)), (case, axis)


@pytest.mark.parametrize(("most", "unit"), [(138, "s"), (2.3, "m"), (138_000, "ms")])
def test_ticks_of_a_duration_are_round_seconds(page: Page, most: float, unit: str) -> None:
    """From 10 s on: 50 s would be followed by 1.67 minutes."""
    (axis,) = axes(page, ((0, most), unit, {}))
    assert axis["texts"][1:] == ["30 s", "1 min", "1.5 mins", "2 mins", "2.5 mins"][: len(axis["texts"]) - 1] and len(axis["texts"]) >= 5


def test_a_stack_lists_its_largest_part_first(page: Page) -> None:
    """The colour of a part stays that of its name."""
    times = [BEGIN_MS, BEGIN_MS + MINUTE_MS] * 3
    columns: dict[str, tuple[str, list[Any]]] = {
        "time": ("DateTime64(3)", times),
        "cause": ("String", ["front_end"] * 2 + ["kv_pressure"] * 2 + ["scheduling"] * 2),
        "seconds": ("Float64", [0.1, 0.2, 4.0, 5.0, 7.0, 1.0]),
    }
    draw(page, board_panel("legato-streams", "Stalled time by cause"), columns)
    names = page.locator("#chart .pn-legend-name").all_inner_texts()
    assert names == ["kv_pressure", "scheduling", "front_end"]


def test_an_axis_has_the_values(page: Page) -> None:
    """Values that are far from 0 have an axis without it; equal ones one from 0."""
    usual, apart, equal = axes(page, ((0.0, 7.0), "short", {}), ((50.0, 52.0), "celsius", {}), ((50.0, 50.00000000000001), "celsius", {}))
    assert usual["ticks"] == [0, 2, 4, 6, 8] and usual["texts"] == ["0", "2", "4", "6", "8"]
    assert 49 < apart["range"][0] <= 50 and 52 <= apart["range"][1] < 53 and len(apart["ticks"]) >= 4
    assert equal["range"] == pytest.approx([0, 50]) and equal["ticks"][0] == 0 and len(equal["ticks"]) >= 4


@pytest.mark.parametrize("title", ["Speculation", "Speculation, scraped"])
def test_settings_of_a_column_hold_for_its_labels(page: Page, title: str) -> None:
    """With an engine's name after the column's name, the tokens are numbers on the right axis, and rates are percent on the left one."""
    times = [BEGIN_MS, BEGIN_MS + MINUTE_MS] * 2
    columns: dict[str, tuple[str, list[Any]]] = {
        "time": ("DateTime64(3)", times),
        "engine": ("String", ["gpu-1", "gpu-1", "gpu-2", "gpu-2"]),
        "drafts accepted": ("Float64", [0.6, 0.7, 0.5, 0.6]),
        "tokens per request and step": ("Float64", [2.1, 2.4, 3.2, 3.4]),
    }
    draw(page, board_panel("legato-nodes", title), columns)
    expect(page.locator("#chart .ytick").first).to_be_attached()
    left, right = texts(page, ".ytick text"), texts(page, ".y2tick text")
    assert left and all(text.endswith("%") for text in left)
    assert right and not any("%" in text for text in right) and max(map(float, right)) >= 2
    legend = page.locator("#chart .pn-legend-item").all_inner_texts()
    assert len(legend) == 4 and [text for text in legend if "gpu-1" in text and "tokens" in text and "%" not in text]


def test_a_heatmap_keeps_empty_buckets_between_others(page: Page) -> None:
    """Its rows reach from the first to the last bucket with counts, and the lowest one begins at the bound of the bucket below it."""
    bounds = ["0.001", "0.002", "0.004", "0.008", "0.016", "0.032"]
    counts = [0, 3, 0, 0, 5, 0]
    panel = board_panel("legato-itl", "Gaps between content reads")
    times = [BEGIN_MS + at * MINUTE_MS for at in range(2) for _ in bounds]
    draw(page, panel, {"time": ("DateTime", times), "le": ("String", bounds * 2), "Value": ("UInt64", counts * 2)})
    expect(page.locator("#chart .ytick").first).to_be_attached()
    assert texts(page, ".ytick text") == ["1 ms", "2 ms", "4 ms", "8 ms", "16 ms"]
    assert "buckets from 1 ms to 16 ms" in (page.locator("#chart .pn-plot").get_attribute("aria-label") or "")
