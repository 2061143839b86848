"""Tests of the dashboards in a real browser with few rows, none, hostile ones, and behind a login."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, expect

from helpers.platform.browser import opened, settled
from helpers.servers.reading import stream, streams_in
from helpers.servers.web import web_page
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store

HOSTILE = "<img src=x onerror=alert(1)>'\"&amp;%27${service}"


def test_names_from_the_store_stay_text(browser: Browser, store: Store) -> None:
    """A service with markup, quotes, a variable and a percent code in its name is shown, chosen and linked as it is."""
    attributes = {"gen_ai.request.model": HOSTILE, "http.route": HOSTILE}
    streams_in(store, [stream(gaps_ms=(20.0, 900.0), attributes=attributes)], service=HOSTILE)
    RollupWorker(store, load(), Metrics()).step()
    with web_page(store) as address, opened(browser, f"{address}/d/legato-streams?var-vantage=$__all", height=6_000) as (page, seen):
        settled(page)
        assert page.locator("main").inner_text().count(HOSTILE) >= 3 and page.locator("main img").count() == 0
        page.get_by_text("service", exact=True).first.locator("..").locator("summary").click()
        page.get_by_label(HOSTILE, exact=True).check()
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        settled(page)
        assert parse_qs(urlsplit(page.url).query)["var-service"] == [HOSTILE]
        assert page.locator("section.panel[aria-label='Worst streams'] tbody tr").count() == 1
        assert seen.errors == []


def test_a_store_of_servers_alone_is_shown(browser: Browser, store: Store) -> None:
    """The dashboard's choice of clients, which the store does not have, is All, and the bar says so; a client that comes brings it back."""
    at = {"legato.stream.vantage": "server"}
    streams_in(store, [stream(gaps_ms=(20.0, 900.0), attributes=at)], service="engine")
    RollupWorker(store, load(), Metrics()).step()
    with web_page(store) as address, opened(browser, f"{address}/?refresh=", height=6_000) as (page, seen):
        settled(page)
        expect(page.get_by_label("vantage: All")).to_be_visible()
        assert page.locator("section.panel[aria-label='Worst streams'] tbody tr").count() == 1
        assert "var-vantage" not in page.url and seen.errors == []
        streams_in(store, [stream(gaps_ms=(20.0, 900.0))], service="shop", seed=8)
        RollupWorker(store, load(), Metrics()).step()
        page.reload()
        settled(page)
        expect(page.get_by_label("vantage: client")).to_be_visible()
        expect(page.locator("section.panel[aria-label='Worst streams'] tbody tr")).to_have_count(1)


def test_an_empty_store_says_so(browser: Browser, store: Store) -> None:
    """Dashboards with all types of panels draw over a store without rows, and each panel gives its reason."""
    with web_page(store) as address:
        for uid in ("legato-streams", "legato-itl", "legato-stream", "legato-compare"):
            with opened(browser, f"{address}/d/{uid}?refresh=", height=6_000) as (page, seen):
                settled(page)
                assert page.locator(".failed").count() == 0 and seen.errors == [], uid
                for panel in page.locator("section.panel").all():
                    assert panel.locator(".body").inner_text().strip(), (uid, panel.get_attribute("aria-label"))


def test_a_login_is_asked_for_once(browser: Browser, store: Store) -> None:
    """A wrong password is refused with the reason; the right one opens the page that the URL names.

    A session that ends while a page is open asks again, and returns to the page. Logging out ends the session.
    """
    with web_page(store, read_user="ana", read_password="a long password") as address:
        with opened(browser, f"{address}/d/legato-runbook") as (page, _):
            for password in ("wrong", "a long password"):
                page.get_by_label("User").fill("ana")
                page.get_by_label("Password or token").fill(password)
                page.get_by_role("button", name="Log in").click()
                if password == "wrong":
                    expect(page.get_by_role("status")).to_contain_text("wrong")
            expect(page.locator("h1")).to_contain_text("Runbook")
            page.get_by_role("navigation").get_by_role("link", name="Streams").click()
            settled(page)
            page.context.clear_cookies()
            page.get_by_role("button", name="Run now").click()
            expect(page.locator("h1")).to_contain_text("Log in")
            page.get_by_label("User").fill("ana")
            page.get_by_label("Password or token").fill("a long password")
            page.get_by_role("button", name="Log in").click()
            expect(page.locator("h1")).to_contain_text("Streams")
            page.get_by_role("button", name="Log out").click()
            expect(page.locator("h1")).to_contain_text("Log in")
