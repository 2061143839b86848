"""The bar of a dashboard, in a real browser: what the time range says."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from helpers.platform.browser import opened


def time_range(page: Page) -> Locator:
    """The field that shows the time range."""
    return page.get_by_text("Time range", exact=True).locator("..").locator("summary")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "Last 3 hours"),
        ("from=now-24h&to=now", "Last 24 hours"),
        ("from=now-45m&to=now", "now-45m – now"),
        ("from=now-2h&to=now-30m", "now-2h – now-30m"),
    ],
)
def test_a_range_that_moves_is_not_shown_as_a_time(browser: Browser, page_url: str, given: str, text: str) -> None:
    """The text stays while the dashboard is refreshed, so it is relative."""
    with opened(browser, f"{page_url}/d/legato-self?refresh=&{given}") as (page, _):
        expect(time_range(page)).to_have_text(text)


def test_a_range_that_is_not_possible_shows_what_is_used(browser: Browser, page_url: str) -> None:
    """A range that ends before it begins is the hour before its end, in times."""
    with opened(browser, f"{page_url}/d/legato-self?refresh=&from=now-1h&to=now-2h") as (page, _):
        expect(time_range(page)).to_contain_text(" – 20")
        assert "now" not in time_range(page).inner_text()
