"""Hostile names in the store, in a real browser: each page shows every character of them, and filters still use the names themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from helpers.builders.hostile import HOSTILE, put_into_all_texts, unseen
from helpers.builders.judging import worker
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, trace_id
from helpers.builders.world_spans import stream as world_stream
from helpers.dashboards.running import in_flight, silent
from helpers.platform.browser import opened, settled
from helpers.servers.reading import open_store, stream, streams_in
from helpers.servers.web import web_page
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store

WORLD = World(slow={200: 600 * MS})
RECEIVED_NS = int(WORLD.ends[-1]) + 10**9
# What a person can see or hear of a page: its text, its labels and titles, and what it draws as text.
_TEXTS = """() => [document.title, document.body.textContent, ...window.drawn,
  ...[...document.querySelectorAll('[aria-label], [title]')].flatMap((each) => [each.getAttribute('aria-label'), each.title])]"""
_COLLECT = """window.drawn = []; const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...more) { window.drawn.push(text); fill.call(this, text, ...more); };"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str]]:
    """The page over judged streams with their engine and their rollups, all with hostile names, and its store."""
    named = {"gen_ai.request.model": "m", "http.route": "/v1", "legato.engine.id": "e:8000", "gen_ai.response.id": "chatcmpl-1"}
    with open_store(tmp_path_factory.mktemp("hostile") / "store") as store:
        for vantage in ("client", "server"):
            put(store, world_stream(WORLD, vantage, 0), RECEIVED_NS)
        put(store, steps(WORLD, WORLD.streams), RECEIVED_NS)
        worker(store).step()
        streams_in(store, [stream((20.0, 900.0), attributes=named)])
        put_into_all_texts(store)
        RollupWorker(store, load(), Metrics()).step()
        with web_page(store) as address:
            yield store, address


def texts_of(page: Page) -> str:
    """Everything that the page shows. Tabs and line breaks are white space in HTML."""
    return "\n".join(filter(None, page.evaluate(_TEXTS))).replace("\t", " ")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/d/legato-streams?refresh=&var-vantage=$__all",
            "/d/legato-itl?refresh=",
            "/d/legato-now?refresh=",
            "/d/legato-stream?refresh=",
        ),
        *(f"/stream/{trace_id(0).hex()}", "/incident", "/sql?sql=SELECT+service_name,model,engine_id+FROM+streams"),
    ],
)
def test_no_page_has_a_character_that_is_not_seen(browser: Browser, served: tuple[Store, str], path: str) -> None:
    """In its text, its labels, and its drawings; no name is markup."""
    store, url = served
    if "legato-now" in path:
        in_flight(store, 5, service=HOSTILE)
        silent(store, 1, 9, service=HOSTILE, attributes={"legato.engine.id": HOSTILE, "gen_ai.request.model": HOSTILE})
    with opened(browser, "about:blank", height=6_000) as (page, seen):
        page.add_init_script(_COLLECT)
        page.goto(f"{url}{path}")
        if path.startswith("/sql"):
            page.get_by_role("button", name="Run").click()
        expect(page.locator("body")).to_contain_text("u202e")
        settled(page)
        found = texts_of(page)
        assert not unseen(found) and "\\u001b" in found and "\\u202e" in found
        assert seen.errors == []


def test_a_filter_uses_the_name_itself(browser: Browser, served: tuple[Store, str]) -> None:
    """The escapes are shown only: the chosen value in the URL is the name, and its rows are found."""
    with opened(browser, f"{served[1]}/d/legato-streams?refresh=&var-vantage=$__all", height=6_000) as (page, _):
        settled(page)
        page.get_by_text("service", exact=True).first.locator("..").locator("summary").click()
        page.locator("label", has_text="\\u202e").first.locator("input").check()
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        settled(page)
        (chosen,) = parse_qs(urlsplit(page.url).query)["var-service"]
        assert HOSTILE in chosen, json.dumps(chosen)
        assert page.locator("section.panel[aria-label='Worst streams'] tbody tr").count() == 1
