"""Tests of the pages that are no dashboard in a real browser: what runs now, the report of an incident, and the page for SQL."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from helpers.dashboards.panels import Past
from helpers.platform.browser import opened, pictured, settled


def span_of(past: Past) -> str:
    """The last six hours of the past as parameters of a URL."""
    return f"from={past.now_ns // 10**6 - 6 * 3_600_000}&to={past.now_ns // 10**6}"


def test_a_stream_of_a_table_is_one_click_away(browser: Browser, page_url: str, past: Past) -> None:
    """A stream's id in a dashboard opens its page, with the verdict of its longest stall; the back button returns."""
    with opened(browser, f"{page_url}/d/legato-streams?{span_of(past)}&var-vantage=$__all", height=6_000) as (page, seen):
        page.locator("section.panel[aria-label='Worst streams'] tbody a").first.click()
        expect(page.locator(".st-page")).to_be_visible()
        assert urlsplit(page.url).path.startswith("/stream/")
        page.go_back()
        expect(page.locator("h1")).to_contain_text("Streams")
        assert seen.errors == []


def test_now_lists_a_stream_once_with_its_cause(browser: Browser, page_url: str) -> None:
    """With all vantages at which it is silent."""
    stalled = {"trace": "0c" * 16, "service": "shop", "model": "m", "engine": "", "silence_us": 5_000_000, "gap_start_us": "7803000"}
    found = {"cause": "kv_pressure", "confidence": "likely"}
    rows = [{**stalled, **found, "vantage": vantage} for vantage in ("server", "client")]
    event = json.dumps({"in_flight": [], "stalled": rows, "stalled_streams": 1, "engines": []})
    with opened(browser, "about:blank") as (page, _):
        page.route("**/api/now", lambda route: route.fulfill(content_type="text/event-stream", body=f"event: now\ndata: {event}\n\n"))
        page.goto(f"{page_url}/d/legato-now?refresh=")
        expect(page.locator(".live-stalled li")).to_have_count(1)
        expect(page.locator(".live-stalled li")).to_contain_text("likely")
        expect(page.locator(".live-stalled li")).to_contain_text("server and client")


def test_now_lists_each_stream_of_a_trace(browser: Browser, page_url: str) -> None:
    """An agent's parallel calls are one trace. The rows of a server are those of the same streams."""
    common = {"trace": "0c" * 16, "service": "shop", "model": "m", "engine": "", "gap_start_us": "7803000", "cause": "", "confidence": ""}
    lengths = (("client", 9), ("server", 8), ("client", 7), ("server", 6), ("client", 5))
    rows = [{**common, "silence_us": seconds * 1_000_000, "vantage": vantage} for vantage, seconds in lengths]
    event = json.dumps({"in_flight": [], "stalled": rows, "stalled_streams": 3, "engines": []})
    with opened(browser, "about:blank") as (page, _):
        page.route("**/api/now", lambda route: route.fulfill(content_type="text/event-stream", body=f"event: now\ndata: {event}\n\n"))
        page.goto(f"{page_url}/d/legato-now?refresh=")
        items = page.locator(".live-stalled li")
        expect(items).to_have_count(3)
        for place, where in enumerate(("client and server", "client and server", "client · ")):
            expect(items.nth(place)).to_contain_text(where)


def test_now_is_pushed_by_the_server(browser: Browser, page_url: str) -> None:
    """The state arrives without a reload; when the connection is lost, the page says so, and that its figures are old."""
    with opened(browser, f"{page_url}/d/legato-now") as (page, seen):
        live = page.get_by_label("Live", exact=True)
        expect(live.get_by_role("status")).to_contain_text("in flight")
        settled(page)
        assert seen.errors == []
        page.route("**/api/now", lambda route: route.abort())
        page.reload()
        expect(live.get_by_role("status")).to_contain_text("no connection")


def test_an_incident_is_one_page(browser: Browser, page_url: str, past: Past) -> None:
    """The report of the range, with links to its streams; another range is in the URL."""
    with opened(browser, f"{page_url}/incident?{span_of(past)}") as (page, seen):
        report = page.locator("article.report")
        expect(report.locator("table").first).to_be_visible()
        assert report.locator("a[href^='/stream/']").count() > 0
        pictured(page, "incident")
        page.get_by_label("Service (empty: all)").fill("no such service")
        page.keyboard.press("Tab")
        expect(report.locator("a[href^='/stream/']")).to_have_count(0)
        assert "var-service=no+such+service" in page.url and seen.errors == []


def test_a_panel_leads_to_its_sql_and_a_user_changes_it(browser: Browser, page_url: str, past: Past) -> None:
    """The statement of a panel runs in the page for SQL; an edited one survives a reload; an error is shown with its reason."""
    with opened(browser, f"{page_url}/d/legato-streams?{span_of(past)}&var-vantage=$__all") as (page, seen):
        settled(page)
        page.get_by_label("Menu of Goodput", exact=True).click()
        page.get_by_role("button", name="The SQL behind this").locator("visible=true").click()
        page.get_by_role("dialog").get_by_role("link", name="Run and edit").first.click()
        expect(page.locator(".age")).to_contain_text(" ms")
        assert "SELECT" in page.get_by_label("SQL", exact=True).input_value()
        page.goto(f"{page_url}/sql")
        page.get_by_label("SQL", exact=True).fill("SELECT 40 + 2 AS answer")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".sql-result tbody td").first).to_have_text("42")
        pictured(page, "sql")
        page.reload()
        assert page.get_by_label("SQL", exact=True).input_value() == "SELECT 40 + 2 AS answer"
        page.get_by_label("SQL", exact=True).fill("DROP TABLE streams")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert [error for error in seen.errors if "Failed to load resource" not in error] == []


def test_numbers_of_a_result_are_exact(browser: Browser, page_url: str) -> None:
    """Integers of 64 bits and decimals with more digits than JavaScript's numbers are shown, sorted and exported as the store has them."""
    sql = """SELECT arrayJoin([9007199254740992, 9007199254740994, 9007199254740993])::UInt64 AS hash, 18446744073709551615 AS most,
        toInt64('-9223372036854775808') AS least, toDecimal128('12345678901234567890.12', 2) AS price, 0.1 + 0.2 AS float,
        [9007199254740993, 7] AS list, '\\\\ 9007199254740993, "1"' AS text, 1795973520000000001 AS ns"""
    with opened(browser, f"{page_url}/sql") as (page, seen):
        expect(page.locator(".age")).to_contain_text(" ms")
        page.get_by_label("SQL", exact=True).fill(sql)
        page.keyboard.press("Control+Enter")
        rows = page.locator(".sql-result tbody tr")
        expect(rows).to_have_count(3)
        page.get_by_role("button", name="hash").click()
        shown = [row.locator("td").all_inner_texts() for row in rows.all()]
        assert [cells[0] for cells in shown] == ["9,007,199,254,740,994", "9,007,199,254,740,993", "9,007,199,254,740,992"]
        assert shown[0][1:3] == ["18,446,744,073,709,551,615", "-9,223,372,036,854,775,808"]
        assert shown[0][4:] == ["0.300", "9007199254740993, 7", '\\ 9007199254740993, "1"', "1,795,973,520,000,000,001"]
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download CSV").click()
        (header, *lines) = saved.value.path().read_text().splitlines()
        assert header == "hash,most,least,price,float,list,text,ns"
        rest = "18446744073709551615,-9223372036854775808,12345678901234567890.12,0.30000000000000004"
        assert lines[2].startswith(f"9007199254740993,{rest},") and lines[2].endswith('"\\ 9007199254740993, ""1""",1795973520000000001')
        assert seen.errors == []


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("path", ["/incident", "/sql", "/d/legato-now"])
def test_the_pages_are_accessible(browser: Browser, page_url: str, past: Past, path: str, theme: str) -> None:
    """axe-core finds nothing serious, and nothing is wider than a phone."""
    with opened(browser, f"{page_url}{path}?{span_of(past)}", width=390, theme=theme) as (page, _):
        settled(page)
        expect(page.locator("main")).not_to_contain_text("loading")
        found = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in found] == []
        assert int(page.evaluate("() => document.documentElement.scrollWidth")) <= 390
