"""The bar of a dashboard and the address, in a real browser: what the time range says, what is chosen, and what a bad address or a
server that is away leads to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from helpers.platform.browser import opened, settled

# 02:30 in Berlin, twice: the clocks go back at 01:00 UTC.
FIRST_MS, SECOND_MS = 1_792_888_200_000, 1_792_891_800_000


def time_range(page: Page) -> Locator:
    """The field that shows the time range."""
    return page.get_by_text("Time range", exact=True).locator("..").locator("summary")


@contextlib.contextmanager
def in_berlin(browser: Browser, url: str) -> Iterator[Page]:
    """A page in the time zone of Berlin."""
    context = browser.new_context(timezone_id="Europe/Berlin")
    page = context.new_page()
    try:
        page.goto(url)
        yield page
    finally:
        context.close()


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


def test_the_hour_that_the_clocks_repeat(browser: Browser, page_url: str) -> None:
    """Two times that read the same have their offsets, and the picker takes back what it shows."""
    with in_berlin(browser, f"{page_url}/d/legato-self?refresh=&from={FIRST_MS}&to={SECOND_MS}") as page:
        expect(time_range(page)).to_have_text("2026-10-25 02:30:00 UTC+2 – 2026-10-25 02:30:00 UTC+1")
        time_range(page).click()
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        query = parse_qs(urlsplit(page.url).query)
        assert (query["from"], query["to"]) == ([str(FIRST_MS)], [str(SECOND_MS)])
        time_range(page).click()
        page.get_by_label("To (local time)").fill("2026-10-25T04:00:00")
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        expect(time_range(page)).to_have_text("2026-10-25 02:30:00 – 2026-10-25 04:00:00")
        assert parse_qs(urlsplit(page.url).query)["from"] == [str(FIRST_MS)]


def test_an_empty_value_shows_all(browser: Browser, page_url: str) -> None:
    """A link of an alert about a service without a name leads to all services, and the page says so."""
    with opened(browser, f"{page_url}/d/legato-streams?refresh=&var-service=") as (page, _):
        expect(page.get_by_label("service: All")).to_have_text("All")


def test_a_title_that_is_cut_can_be_read(browser: Browser, page_url: str) -> None:
    """Each panel's title is its tooltip, too."""
    with opened(browser, f"{page_url}/d/legato-self?refresh=") as (page, _):
        titles = page.locator("section.panel h2")
        expect(titles.first).to_be_visible()
        assert [each.get_attribute("title") for each in titles.all()] == titles.all_inner_texts()


def test_the_page_comes_back_with_the_server(browser: Browser, page_url: str) -> None:
    """A page that was opened while the server was away is drawn when it answers again."""
    with opened(browser, f"{page_url}/d/legato-self?refresh=") as (page, _):
        settled(page)
        page.route("**/api/**", lambda route: route.abort())
        page.get_by_role("navigation").get_by_role("link", name="Runbook").click()
        expect(page.get_by_role("alert")).to_contain_text("legato serve does not answer")
        page.unroute("**/api/**")
        expect(page.locator("h1")).to_contain_text("Runbook")


@pytest.mark.parametrize("path", ["/d/%ff", "/stream/%ff"])
def test_an_address_that_is_no_text(browser: Browser, page_url: str, path: str) -> None:
    """The page says that there is no such dashboard or stream."""
    with opened(browser, f"{page_url}{path}") as (page, seen):
        expect(page.locator("main")).to_contain_text("no ")
        assert [error for error in seen.errors if "Failed to load resource" not in error] == []
