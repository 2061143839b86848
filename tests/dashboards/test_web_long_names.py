"""Long names without spaces, in a real browser: they are broken or cut, so that no page is wider than the screen or the paper."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from helpers.dashboards.panels import Past
from helpers.platform.browser import opened, settled
from helpers.servers.web import BOARDS

LONG = "m" * 200
# A4 with margins of 13 mm.
PAPER_PX = 698


def hours_of(past: Past) -> str:
    """The last six hours of the past as parameters of a URL."""
    return f"from={past.now_ns // 10**6 - 6 * 3_600_000}&to={past.now_ns // 10**6}&refresh="


def too_wide(page: Page) -> int:
    """By how many pixels the document is wider than the window."""
    return int(page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth"))


@pytest.mark.parametrize("width", [390, 1280])
def test_the_title_and_the_choice_of_a_dashboard(browser: Browser, page_url: str, past: Past, width: int) -> None:
    """A long title is broken, and a long chosen value is cut."""
    (board,) = (each for each in BOARDS if each["uid"] == "legato-runbook")
    streams: dict[str, Any] = next(each for each in BOARDS if each["uid"] == "legato-streams")
    titled = {**board, "title": LONG, "templating": streams["templating"]}
    with opened(browser, "about:blank", width=width) as (page, _):
        page.route("**/api/dashboards/legato-runbook", lambda route: route.fulfill(json=titled))
        page.goto(f"{page_url}/d/legato-runbook?{hours_of(past)}&var-model={LONG}")
        expect(page.locator("h1")).to_have_text(LONG)
        expect(page.get_by_label(f"model: {LONG}")).to_be_visible()
        assert too_wide(page) <= 0


@pytest.mark.parametrize("width", [390, 1280])
def test_the_names_of_a_stream(browser: Browser, page_url: str, past: Past, width: int) -> None:
    """A service with a long name, also in the verdict's place."""
    stalled = next(row for row in past.streams if row["stalls_250ms"] and row["vantage"] == "client")

    def renamed(route: Route) -> None:
        content = route.fetch().json()
        for vantage in content["vantages"]:
            vantage["service"] = LONG
        route.fulfill(json=content)

    with opened(browser, "about:blank", width=width) as (page, _):
        page.route("**/api/streams/**", renamed)
        page.goto(f"{page_url}/stream/{bytes(stalled['trace_id']).hex()}")
        expect(page.locator(".st-verdict, .st-below").first).to_contain_text(LONG)
        assert too_wide(page) <= 0


def test_the_report_of_an_incident(browser: Browser, page_url: str, past: Past) -> None:
    """No column of its tables is out of sight, on the screen with a long name, and on paper as it is."""
    outside = "() => [...document.querySelectorAll('article table')].filter((each) => each.getBoundingClientRect().right > edge())"
    with opened(browser, f"{page_url}/incident?{hours_of(past)}") as (page, _):
        report = page.locator("article.report")
        expect(report.locator("table").first).to_be_visible()
        page.emulate_media(media="print")
        page.set_viewport_size({"width": PAPER_PX, "height": 1_100})
        assert page.evaluate(f"() => {{ const edge = () => window.innerWidth; return ({outside})().length; }}") == 0
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1280, "height": 1_100})
        cells = report.locator("tr td:first-child")
        cells.evaluate_all("(found, name) => found.forEach((cell) => { cell.textContent = name; })", LONG)
        assert report.evaluate("(element) => element.scrollWidth - element.clientWidth") <= 0
        settled(page)
