"""An empty store: every panel answers without an error and shows no data."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from helpers.dashboards.panels import BOARDS, Asked, Past, none, statements
from helpers.servers.reading import reading
from helpers.servers.stores import copy_migrated
from legato_ingest.storage import EmbeddedStore

# Panels that show the table `schema_migrations`, which always has rows, and lists that do not come from the store alone.
NEVER_EMPTY = {
    ("self", "Store"),
    ("self", "Tables"),
    ("cost", "Where the bytes are"),
    *(("compare", f"variable {name}") for name in ("by", "a", "b")),
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The read endpoint over a store that has only the schema."""
    folder = tmp_path_factory.mktemp("empty") / "store"
    copy_migrated(folder)
    store = EmbeddedStore(folder, {"max_execution_time": 20})
    try:
        with reading(store) as url, httpx.Client(timeout=60) as client:
            yield Asked(Past(time.time_ns(), "", {}), store, url, client)
    finally:
        store.close()


@pytest.mark.parametrize("name", BOARDS)
@pytest.mark.parametrize("stream", ["", "f" * 32])
def test_panels_are_empty(empty: Asked, name: str, stream: str) -> None:
    """No panel fails; each has no rows, or rows with NULL and 0 only."""
    values = {"stream": stream, "tokens_per_s": "20", "price_received": "1", "price_kept": "1", "months_kept": "1"}
    for hours, point_s in ((6, 60), (15 * 24, 3600)):
        view = empty.past.view("", hours, point_s, {**values, "event_bytes": "85", "span_bytes": "106"})
        for title, sql in statements(name).items():
            answer = empty.sql(sql, view)
            assert none(answer) or (name, title) in NEVER_EMPTY, (title, answer)


def test_the_store_has_only_its_schema_table(empty: Asked) -> None:
    """The panel of tables lists only `schema_migrations`."""
    rows = empty.panel("self", "Tables", empty.past.view("", 6, 60)).as_rows()
    assert [row["table"] for row in rows] == ["schema_migrations"]
