"""Long names without spaces, in a real browser: they are broken or cut, so that no page is wider than the screen."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from helpers.dashboards.panels import Past
from helpers.platform.browser import opened
from helpers.servers.web import BOARDS

LONG = "m" * 200


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
