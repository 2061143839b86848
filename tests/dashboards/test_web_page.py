"""Tests of the dashboards in a real browser: every panel draws its rows, without an error and without a request to another host."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, Route, expect

from helpers.dashboards.panels import Past
from helpers.platform.browser import opened, pictured, settled
from helpers.servers.web import BOARDS

UIDS = [board["uid"] for board in BOARDS]


@pytest.fixture(scope="module")
def span(past: Past) -> str:
    """The time range of the past as parameters of a URL."""
    return f"from={past.now_ns // 10**6 - 6 * 3_600_000}&to={past.now_ns // 10**6}"


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_draws(browser: Browser, page_url: str, span: str, uid: str) -> None:
    """No error, nothing from elsewhere, and each panel shows rows or the reason why there are none."""
    (board,) = (each for each in BOARDS if each["uid"] == uid)
    with opened(browser, f"{page_url}/d/{uid}?{span}&refresh=&var-vantage=$__all", height=6_000) as (page, seen):
        settled(page)
        closed = page.locator(".row-title[aria-expanded=false]")
        while closed.count():
            closed.first.click()
        settled(page)
        drawn = page.locator("section.panel")
        assert drawn.count() == len([panel for panel in panels(board) if panel["type"] != "row"])
        assert page.locator(".failed").count() == 0, page.locator(".failed").all_inner_texts()
        for panel in drawn.all():
            assert panel.locator(".body").inner_text().strip(), panel.get_attribute("aria-label")
        pictured(page, uid)
        assert seen.errors == [] and seen.hosts == {"127.0.0.1"}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, also those of closed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def test_a_table_has_the_rows_of_its_sql(browser: Browser, page_url: str, span: str) -> None:
    """The page's table and the result of the same query have the same number of rows and the same first stream."""
    with opened(browser, f"{page_url}/d/legato-streams?{span}&var-vantage=$__all", height=6_000) as (page, _):
        with page.expect_response(lambda reply: asked_for(reply.request, "Worst streams")) as caught:
            page.reload()
        settled(page)
        result = caught.value.json()
        table = page.locator("section.panel[aria-label='Worst streams']")
        assert f"{result['rows']} rows" in table.inner_text()
        assert table.locator("tbody tr").first.locator("a").first.inner_text() == result["data"]["stream"][0]


def asked_for(request: Request, title: str) -> bool:
    """Whether a request is for the panel with this title of the dashboard Streams."""
    if not request.url.endswith("/api/query"):
        return False
    asked: Any = request.post_data_json
    (board,) = (each for each in BOARDS if each["uid"] == "legato-streams")
    numbers = {f"{panel['id']}/A" for panel in panels(board) if panel.get("title") == title}
    return bool(asked) and asked.get("kind") == "panel" and asked.get("name") in numbers


def test_the_state_is_in_the_url(browser: Browser, page_url: str, span: str) -> None:
    """Range, values and dashboard survive a reload, and the back button returns to the earlier ones."""
    with opened(browser, f"{page_url}/d/legato-streams?{span}") as (page, seen):
        settled(page)
        page.get_by_text("vantage", exact=True).locator("..").locator("summary").click()
        page.get_by_label("All", exact=True).locator("visible=true").check()
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        settled(page)
        assert parse_qs(urlsplit(page.url).query)["var-vantage"] == ["$__all"]
        page.get_by_role("navigation").get_by_role("link", name="ITL").click()
        expect(page.locator("h1")).to_contain_text("ITL")
        assert "var-vantage" in page.url and "from=" in page.url
        page.go_back()
        expect(page.locator("h1")).to_contain_text("Streams")
        page.reload()
        settled(page)
        assert "var-vantage=%24__all" in page.url and seen.errors == []


def test_a_choice_of_one_takes_back_what_depends_on_it(browser: Browser, page_url: str, span: str) -> None:
    """A variable without several values has radio buttons; another dimension takes back the values chosen for the old one."""
    with opened(browser, f"{page_url}/d/legato-compare?{span}&var-a=1.4.2", height=1_200) as (page, seen):
        settled(page)
        page.get_by_text("Compare by", exact=True).locator("..").locator("summary").click()
        page.get_by_label("model", exact=True).locator("visible=true").check()
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        expect(page.get_by_label("by: model")).to_be_visible()
        settled(page)
        query = parse_qs(urlsplit(page.url).query)
        assert query["var-by"] == ["model"] and "var-a" not in query and seen.errors == []


def test_a_failing_panel_leaves_the_others_alone(browser: Browser, page_url: str, span: str) -> None:
    """One query fails: its panel shows the server's message, and all others draw."""

    def fail(route: Route) -> None:
        if asked_for(route.request, "Traffic"):
            route.fulfill(status=500, json={"error": "Code: 241. Memory limit exceeded"})
        else:
            route.continue_()

    with opened(browser, "about:blank", height=6_000) as (page, _):
        page.route("**/api/query", fail)
        page.goto(f"{page_url}/d/legato-streams?{span}")
        settled(page)
        assert page.locator(".failed").all_inner_texts() == ["Code: 241. Memory limit exceeded"]
        assert page.locator("section.panel[aria-label='Goodput'] .body").inner_text().strip()


def test_a_store_that_restarts_is_used_again(browser: Browser, page_url: str, span: str) -> None:
    """While the server does not answer, each panel says so; the next run draws them."""
    with opened(browser, f"{page_url}/d/legato-now?{span}&refresh=", height=3_000) as (page, _):
        settled(page)
        page.route("**/api/query", lambda route: route.abort("connectionrefused"))
        page.get_by_role("button", name="Run now").click()
        expect(page.locator(".failed").first).to_contain_text("legato serve does not answer")
        settled(page)
        assert page.locator(".failed").count() == page.locator("section.panel").count()
        page.unroute("**/api/query")
        page.get_by_role("button", name="Run now").click()
        expect(page.locator(".failed")).to_have_count(0)


def test_another_theme_needs_no_query(browser: Browser, page_url: str, span: str) -> None:
    """The rows that are there are drawn again, in other colours; a sorted table stays sorted."""
    asked = list[str]()
    with opened(browser, f"{page_url}/d/legato-cost?{span}&refresh=", height=3_000) as (page, seen):
        settled(page)
        heading = page.locator("th[aria-sort] button").first
        heading.click()
        before = page.locator("section.panel").all_inner_texts()
        page.on("request", lambda request: asked.append(request.url))
        page.locator("#theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        settled(page)
        assert page.locator("section.panel").all_inner_texts() == before and any(before)
        assert asked == [] and seen.errors == []


def test_a_query_is_cancelled_when_its_page_is_left(browser: Browser, page_url: str, span: str) -> None:
    """A slow panel shows that it loads; another dashboard ends its request."""
    with opened(browser, "about:blank") as (page, _):
        page.route("**/api/query", lambda route: None if asked_for(route.request, "Traffic") else route.continue_())
        with page.expect_request(lambda request: asked_for(request, "Traffic")):
            page.goto(f"{page_url}/d/legato-streams?{span}")
        expect(page.locator("section.panel[aria-label='Traffic']")).to_have_class(re.compile("loading"))
        with page.expect_event("requestfailed", lambda request: "ABORTED" in (request.failure or "")):
            page.get_by_role("navigation").get_by_role("link", name="Runbook").click()
        expect(page.locator("h1")).to_contain_text("Runbook")


def test_a_panel_out_of_sight_does_not_load(browser: Browser, page_url: str, span: str) -> None:
    """A run that finds a loading panel out of sight cancels its query: the panel waits, and loads no longer."""
    with opened(browser, "about:blank", height=6_000) as (page, _):
        page.route("**/api/query", lambda route: None if asked_for(route.request, "Worst streams") else route.continue_())
        page.goto(f"{page_url}/d/legato-streams?{span}&refresh=")
        table = page.locator("section.panel[aria-label='Worst streams']")
        expect(table).to_have_class(re.compile("loading"))
        page.set_viewport_size({"width": 1280, "height": 200})
        end_s = time.monotonic() + 30
        while "loading" in (table.get_attribute("class") or "") and time.monotonic() < end_s:
            # A busy browser notices late which panels are out of sight.
            page.wait_for_timeout(200)
            page.get_by_role("button", name="Run now").click()
        expect(table).not_to_have_class(re.compile("loading"))


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("path", ["/", "/d/legato-streams", "/d/legato-runbook"])
def test_the_page_is_accessible(browser: Browser, page_url: str, span: str, path: str, theme: str) -> None:
    """axe-core finds nothing serious: names, roles, contrast, order of headings."""
    with opened(browser, f"{page_url}{path}?{span}", theme=theme, height=3_000) as (page, _):
        settled(page)
        found = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in found] == []


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_wider_than_the_screen(browser: Browser, page_url: str, span: str, width: int) -> None:
    """Panels scroll inside; the page itself does not scroll sideways."""
    with opened(browser, f"{page_url}/d/legato-streams?{span}", width=width, height=3_000) as (page, _):
        settled(page)
        assert width_of(page) <= width


def width_of(page: Page) -> int:
    """The width of the document in pixels."""
    return int(page.evaluate("() => document.documentElement.scrollWidth"))
