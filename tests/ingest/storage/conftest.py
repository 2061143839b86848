"""What several tests of the room need: a data part that the engine wrote, and a filled store with a backup."""

from __future__ import annotations

import pathlib
import shutil
import threading

import pytest

from helpers.servers.filled import send_stalls
from helpers.servers.serving import legato, serve_process
from legato_ingest.cli import admin_client
from legato_ingest.errors import LegatoError
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.part_checksums import listed_sizes


@pytest.fixture(scope="module", params=["wide", "compact", "lz4"])
def part(request: pytest.FixtureRequest, shared_store: Store, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of a part that the engine wrote."""
    store, rule = shared_store, {"wide": "0", "compact": "1000000000", "lz4": "0"}[request.param]
    codec = "CODEC(LZ4)" if request.param == "lz4" else "CODEC(ZSTD(1))"
    store.command(
        f"CREATE TABLE some_parts (a UInt64 {codec}, b LowCardinality(String), c Nullable(UInt8), INDEX i c TYPE minmax)"
        f" ENGINE = MergeTree ORDER BY a TTL toDateTime(a) + INTERVAL 1 DAY SETTINGS min_bytes_for_wide_part = {rule}"
    )
    try:
        store.command("SYSTEM STOP MERGES some_parts")
        store.command("INSERT INTO some_parts SELECT 4000000000 + number, toString(number % 9), NULL FROM numbers(20000)")
        ((size, path),) = store.select("SELECT bytes_on_disk, path FROM system.parts WHERE table = 'some_parts' AND active")
        copy = tmp_path_factory.mktemp("parts") / "all_1_1_0"
        shutil.copytree(str(path), copy)
    finally:
        store.command("DROP TABLE some_parts SYNC")
    listed = listed_sizes((copy / "checksums.txt").read_bytes())
    # The sizes in the list add up to the size that the engine reports for the part.
    assert listed and sum(listed.values()) == size and set(listed) < {each.name for each in copy.iterdir()}
    return copy


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A store with streams, verdicts and rollups that no process uses, and a backup `one` that was made while rows were inserted."""
    store = tmp_path_factory.mktemp("full") / "store"
    fast = {"LEGATO_ATTRIBUTE_EVERY_S": "0.2", "LEGATO_ATTRIBUTE_GRACE_S": "0", "LEGATO_ROLLUP_EVERY_S": "0.2"}
    with serve_process(store, **fast) as served:
        send_stalls(served, 200)
        done = threading.Event()

        def go_on() -> None:
            while not done.is_set():
                send_stalls(served, 20)

        sender = threading.Thread(target=go_on)
        sender.start()
        made = legato("backup", "one", environ=served.environ, timeout_s=120)
        done.set()
        sender.join()
        assert made.returncode == 0 and "restored once, and identical" in made.stdout, made.stderr
        settings = load(store=served.environ["LEGATO_STORE"])
        with pytest.raises(LegatoError, match="exists already"):
            admin_client.backup(settings, "one")
        with pytest.raises(LegatoError, match="a backup's name has"):
            admin_client.backup(settings, "../one")
    return store
