"""One past for all tests of the dashboards. It is filled once and cached; each module opens a copy of the store."""

from __future__ import annotations

import pathlib
import pickle
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from helpers.dashboards.panel_past import fill
from helpers.dashboards.panels import Answer, Asked, Past
from helpers.platform.browser import chromium
from helpers.servers.reading import open_store, reading
from helpers.servers.stores import copy_migrated, copy_of, empty
from helpers.servers.web import web_page
from legato_ingest.storage import EmbeddedStore, Store

READ_LIMITS: dict[str, int | str] = {
    "max_execution_time": 20,
    "max_memory_usage": 2**31,
    "max_result_rows": 1_000_000,
    "result_overflow_mode": "throw",
}
PATIENCE_S = 60
# The past ends at the time of filling. Panels are queried for ranges relative to that time, so an older store gives the same answers; the
# limit only bounds what depends on the clock: a stream that is still running is due for a day.
AGE_S_MAX = 3_600
# What depends on the clock, or on the parts of the store: another module may merge them.
VARYING = re.compile(r"\bnow(64)?\(|\bsystem\.")


def _build(folder: pathlib.Path) -> None:
    """Write the folder `store`, and the file `past` with its raw rows."""
    copy_migrated(folder / "store")
    store = EmbeddedStore(folder / "store")
    try:
        past = fill(store)
    finally:
        store.close()
    (folder / "past").write_bytes(pickle.dumps((past.now_ns, past.tenant, dict(past.tables))))


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Past]:
    """The folder of the store, which is closed, and its raw rows."""
    folder = tmp_path_factory.mktemp("dashboards") / "filled"
    copy_of("dashboards", _build, folder, AGE_S_MAX)
    return folder / "store", Past(*pickle.loads((folder / "past").read_bytes()))


@pytest.fixture(scope="module")
def past(filled: tuple[pathlib.Path, Past]) -> Past:
    """The raw rows of the store."""
    return filled[1]


@pytest.fixture(scope="session")
def answers() -> dict[str, Answer]:
    """Answers about the past that no module changes, by the text of their statement."""
    return {}


@pytest.fixture(scope="module")
def asked(filled: tuple[pathlib.Path, Past], answers: dict[str, Answer]) -> Iterator[Asked]:
    """The read endpoint over the filled store. No parts are merged while it is open, so the size of the store does not change."""
    store = EmbeddedStore(filled[0], READ_LIMITS)
    store.command("SYSTEM STOP MERGES")
    try:
        with reading(store) as url, httpx.Client(timeout=PATIENCE_S) as client:
            yield Asked(filled[1], store, url, client, answers)
    finally:
        store.close()
        for text in [text for text in answers if VARYING.search(text)]:
            del answers[text]


@pytest.fixture(scope="module")
def page_url(filled: tuple[pathlib.Path, Past]) -> Iterator[str]:
    """The web page over the past of the dashboards' tests."""
    store = EmbeddedStore(filled[0])
    try:
        with web_page(store) as address:
            yield address
    finally:
        store.close()


@pytest.fixture(scope="module")
def unfilled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema that a module's tests share."""
    with open_store(tmp_path_factory.mktemp("unfilled") / "store") as opened:
        yield opened


@pytest.fixture
def store(unfilled: Store) -> Store:
    """The shared store, emptied."""
    empty(unfilled)
    return unfilled


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each test has its own context."""
    with chromium() as running:
        yield running
