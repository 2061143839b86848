"""The page of a stream with ids that another tenant has copied."""

from __future__ import annotations

import pathlib

import pytest

from helpers.builders.judging import worker
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream, trace_id
from helpers.servers.reading import open_store, reading
from legato_ingest.cli.client import Reader
from legato_ingest.web.stream_view import NoSuchStream, stream_view

# Step 200 takes 600 ms longer, and 2,000 prompt tokens in step 300 make it 400 ms longer.
WORLD = World(slow={200: 600 * MS}, prefill={300: 2_000})
RECEIVED_NS = int(WORLD.ends[-1]) + 10**9
COPIED = {
    "stream_revs": "received_at + 1 AS received_at, rev + 1 AS rev, 'wrong' AS service_name",
    "verdicts": "judged_at + 1 AS judged_at, 'delivery' AS cause",
    "replays": "judged_at + 1 AS judged_at",
    "engine_steps": "0 AS running",
    "engine_requests": "preemptions + 1 AS preemptions",
}


def test_another_tenants_copy_of_the_ids_changes_no_page(tmp_path: pathlib.Path) -> None:
    """An operator who reads all tenants chooses one: rows, verdicts and the engine are those of this tenant."""
    with open_store(tmp_path / "store") as opened:
        for vantage in ("client", "server"):
            put(opened, stream(WORLD, vantage, 0, "boot:4026:5000"), RECEIVED_NS)
        put(opened, steps(WORLD, WORLD.streams), RECEIVED_NS)
        worker(opened).step()
        identity = trace_id(0).hex()
        with reading(opened) as url:
            before = stream_view(Reader(url).rows, identity)
            for table, changed in COPIED.items():
                opened.command(f"INSERT INTO {table} SELECT * REPLACE ('copy' AS tenant, {changed}) FROM {table}")
            with pytest.raises(NoSuchStream, match="2 tenants"):
                stream_view(Reader(url).rows, identity)
            assert {**stream_view(Reader(url).rows, f":{identity}"), "identity": identity} == before
            assert stream_view(Reader(url).rows, f"copy:{identity}")["service"] == "wrong"
    assert before["stalls"] and before["engine"]["steps"]
