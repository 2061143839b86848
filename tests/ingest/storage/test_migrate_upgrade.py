"""A store made by the code of commit f181db1 (tests/data/README.md) opens under this version: nothing is lost, and it goes on."""

from __future__ import annotations

import json
import pathlib
import re
import tarfile
from collections.abc import Iterator

import httpx
import pytest

from helpers.builders.spans import native_span, request
from helpers.repo.repository import ROOT
from helpers.servers.reading import stream, streams_in
from helpers.servers.serving import legato, legato_json, serve_process
from helpers.servers.waiting import until
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store, migrate
from legato_ingest.storage.copy import RowChecksum, checksum_of, tables_of
from legato_ingest.storage.retention import set_retention

SCHEMA = ROOT / "schema"
DATA = ROOT / "tests" / "data"
RECORDED = json.loads((DATA / "store_f181db1.json").read_text(encoding="utf-8"))["tables"]
NEWEST = len(migrate.load(SCHEMA))
BASELINE = json.loads((SCHEMA / "replaced.json").read_text(encoding="utf-8"))["baseline"]
TABLES = {name: RowChecksum(*checksum) for name, checksum in RECORDED.items()}


def unpacked(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the old store."""
    with tarfile.open(DATA / "store_f181db1.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "store"


def checksums(store: Store) -> dict[str, RowChecksum]:
    """Rows and row checksum of each table."""
    return {name: checksum_of(store, name, merged) for name, merged in {**tables_of(store), "writers": True, "leases": True}.items()}


@pytest.fixture(scope="module")
def taken_over() -> dict[str, RowChecksum]:
    """The checksums of the old store before files were applied that add columns."""
    return {}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, taken_over: dict[str, RowChecksum]) -> Iterator[Store]:
    """The old store, opened and migrated by this version."""
    opened = EmbeddedStore(unpacked(tmp_path_factory.mktemp("old")))
    migrations = migrate.load(SCHEMA)
    assert len(migrate.applied(opened)) == 26 and not migrate.is_current(opened, migrations)
    assert migrate.apply(opened, migrations[:BASELINE]) == []
    taken_over.update(checksums(opened))
    assert migrate.apply(opened, migrations) == migrations[BASELINE:]
    assert migrate.is_current(opened, migrations)
    yield opened
    opened.close()


# Tables that later versions added.
ADDED = ("stream_silences", "objectives", "emitter_spans", "trace_export_runs", "node_samples_5min")


def test_every_row_is_there(store: Store, taken_over: dict[str, RowChecksum]) -> None:
    """Each table has rows, and they are the rows that the old version had; later files add columns and remove no row."""
    assert all(rows for rows, _ in TABLES.values()) and {name: each for name, each in taken_over.items() if name not in ADDED} == TABLES
    now = {name: each.rows for name, each in checksums(store).items()}
    assert now == {name: each.rows for name, each in TABLES.items()} | {name: 0 for name in ADDED}


def test_its_jitter_ratios_are_recomputed(store: Store) -> None:
    """From the stored gaps, in the background; the old ratio divided by the time-weighted median."""
    until(lambda: store.select("SELECT count() FROM system.mutations WHERE NOT is_done") == [(0,)])
    wrong = "abs(jitter_ratio / (gap_p99_us / greatest(gap_p50_us, 1)) - 1) > 1e-6"
    ((known, wrong_ones, below_one),) = store.select(
        f"SELECT countIf(jitter_ratio IS NOT NULL), countIf({wrong}), countIf(jitter_ratio < 1) FROM stream_revs"
    )
    assert known > 20 and (wrong_ones, below_one) == (0, 0)


def test_its_tables_are_those_of_a_new_store(store: Store) -> None:
    """Each column, type, codec, key, index and setting, once the retention that the old version had set is removed."""
    set_retention(store, 0)
    store.command("DROP DATABASE IF EXISTS fresh")
    store.command("CREATE DATABASE fresh")
    store.command("USE fresh")
    for migration in migrate.load(SCHEMA):
        store.command(migration.statement)
    store.command("USE default")
    sql = "SELECT name, create_table_query FROM system.tables WHERE database = '{}' ORDER BY name"
    old, new = ({str(name): str(made) for name, made in store.select(sql.format(database))} for database in ("default", "fresh"))
    assert {name: re.sub(r", old_parts_lifetime = \d+", "", made) for name, made in old.items()} == {
        name: made.replace("fresh.", "default.") for name, made in new.items()
    }
    store.command("DROP DATABASE fresh")


def test_it_takes_more_rows(store: Store) -> None:
    """New streams are stored next to the old ones, read by the view, and rolled up."""
    streams = "SELECT vantage, count() FROM streams GROUP BY vantage ORDER BY vantage"
    assert store.select(streams) == [("client", 23), ("server", 23)]
    streams_in(store, [stream(), stream((20.0, 700.0))])
    assert store.select(streams) == [("client", 25), ("server", 23)]
    ((before,),) = store.select("SELECT sum(streams) FROM stream_minutes FINAL")
    RollupWorker(store, load(retention_days=0), Metrics()).again(0)
    assert store.select("SELECT sum(streams) FROM stream_minutes FINAL") == [(before + 2,)]


def test_the_commands_upgrade_it(tmp_path: pathlib.Path) -> None:
    """`legato schema status` reports the old files, and `apply` exchanges their records."""
    environ = {"LEGATO_STORE": f"chdb://{unpacked(tmp_path)}"}
    before = legato("schema", "status", environ=environ)
    assert before.returncode == 0 and "the store has the 26 files that 0001 to 0022 replaced" in before.stdout.replace("\n", " ")
    applied = legato("schema", "apply", environ=environ)
    assert applied.returncode == 0 and f"{NEWEST - BASELINE} applied; the schema is current" in applied.stdout, applied.stderr
    after = legato_json("schema", "status", environ=environ)
    assert after["note"] == "" and after["newest_applied"] == NEWEST
    assert all(file["applied"] and not file["changed"] for file in after["files"])


def test_serve_upgrades_it(tmp_path: pathlib.Path) -> None:
    """Without any command before: `legato serve` takes over the store, writes to it and reads the old rows."""
    body = request()
    native_span(body)
    with serve_process(unpacked(tmp_path)) as served:
        headers = {"content-type": "application/x-protobuf"}
        assert httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers=headers).status_code == 200
        assert httpx.post(served.read, content="SELECT count(), (SELECT count() FROM verdicts FINAL) FROM streams").text == "47\t61\n"
