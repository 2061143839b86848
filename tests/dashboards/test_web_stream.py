"""Tests of the page of a stream in a real browser: what it draws, its keys, its state in the URL, and its links."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from helpers.builders.judging import worker
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, trace_id
from helpers.builders.world_spans import stream as world_stream
from helpers.platform.browser import opened, pictured
from helpers.servers.reading import open_store
from helpers.servers.web import web_page

# Step 200 takes 600 ms longer, and 2,000 prompt tokens in step 300 make it 400 ms longer. Both stall all four streams.
WORLD = World(slow={200: 600 * MS}, prefill={300: 2_000})
RECEIVED_NS = int(WORLD.ends[-1]) + 10**9
CLOCK = "boot:4026:5000"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page over four judged streams of one engine, each at its client and its server."""
    with open_store(tmp_path_factory.mktemp("streams") / "store") as store:
        for number in range(WORLD.streams):
            for vantage in ("client", "server"):
                put(store, world_stream(WORLD, vantage, number, CLOCK), RECEIVED_NS)
        put(store, steps(WORLD, WORLD.streams), RECEIVED_NS)
        worker(store).step()
        with web_page(store) as address:
            yield address


def trace(number: int) -> str:
    """The trace id of a stream."""
    return trace_id(number).hex()


def colours(page: Page) -> int:
    """The number of different colours in the timeline's largest canvas."""
    return int(
        page.evaluate(
            """() => {
              const [canvas] = [...document.querySelectorAll('canvas')].sort((a, b) => b.width * b.height - a.width * a.height);
              const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
              return new Set(new Uint32Array(data.buffer)).size;
            }"""
        )
    )


def test_the_prefill_that_stalled_the_stream_is_named(browser: Browser, url: str) -> None:
    """Two stalls at the client; keys go from one to the other; the verdict names the cause, and the URL keeps the choice."""
    with opened(browser, f"{url}/stream/{trace(0)}", height=1_600) as (page, seen):
        expect(page.locator(".st-verdict")).to_contain_text("engine's host")
        assert colours(page) > 10
        page.keyboard.press("n")
        expect(page.locator(".st-verdict")).to_contain_text("prefill of others")
        expect(page.locator(".st-verdict")).to_contain_text("2,000")
        assert parse_qs(urlsplit(page.url).query)["stall"] == ["2"]
        page.reload()
        expect(page.locator(".st-verdict")).to_contain_text("prefill of others")
        page.keyboard.press("p")
        expect(page.locator(".st-verdict")).to_contain_text("engine's host")
        pictured(page, "stream")
        assert seen.errors == [] and seen.hosts == {"127.0.0.1"}


def test_the_streams_of_the_same_step_are_one_click_away(browser: Browser, url: str) -> None:
    """A link leads to another stream that the step stalled, and the back button returns."""
    with opened(browser, f"{url}/stream/{trace(0)}", height=1_600) as (page, seen):
        page.locator(".st-verdict a.st-id").first.click()
        expect(page).not_to_have_url(f"{url}/stream/{trace(0)}")
        expect(page.locator(".st-verdict")).to_contain_text("engine's host")
        assert page.locator("main .st-page").count() == 1
        page.go_back()
        expect(page.locator("main")).to_contain_text(trace(0)[:12])
        assert seen.errors == []


def test_the_search_opens_a_stream(browser: Browser, url: str) -> None:
    """An id leads to its page; one that no stream has leads to a message."""
    with opened(browser, f"{url}/stream/{trace(0)}") as (page, seen):
        page.get_by_label("Open a stream").fill(f" {trace(1)} ")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{url}/stream/{trace(1)}")
        expect(page.locator(".st-verdict")).to_contain_text("because")
        page.get_by_label("Open a stream").fill("nothing")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("no stream has the id")
        assert [error for error in seen.errors if "404" not in error] == []


def test_a_late_reply_draws_nothing(browser: Browser, url: str) -> None:
    """The reply for a stream that the user has left arrives after that of the stream that is shown: the page stays as it is."""
    held = list[Route]()
    with opened(browser, "about:blank") as (page, seen):
        page.route(f"**/api/streams/{trace(0)}", lambda route: held.append(route))
        page.goto(f"{url}/stream/{trace(0)}")
        expect(page.get_by_text("Loading the stream")).to_be_visible()
        page.get_by_label("Open a stream").fill(trace(1))
        page.keyboard.press("Enter")
        expect(page.locator(".st-verdict")).to_contain_text("because")
        held[0].continue_()
        page.wait_for_timeout(500)
        expect(page.locator("main")).to_contain_text(trace(1)[:12])
        assert page.locator(".st-verdict").count() == 1 and seen.errors == []


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1280, "light"), (1920, "dark")])
def test_the_page_of_a_stream_is_accessible(browser: Browser, url: str, width: int, theme: str) -> None:
    """axe-core finds nothing serious, and the page is not wider than the screen."""
    with opened(browser, f"{url}/stream/{trace(0)}", width=width, height=1_200, theme=theme) as (page, _):
        expect(page.locator(".st-verdict")).to_contain_text("because")
        found = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in found] == []
        assert int(page.evaluate("() => document.documentElement.scrollWidth")) <= width
