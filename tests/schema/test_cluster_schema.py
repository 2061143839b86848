"""The tables for a cluster: made of the others, read by ClickHouse's own parser, sharded by trace, replicated."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from helpers.repo.repository import ROOT
from legato_ingest.storage.chdb import Store

FOLDER = ROOT / "schema" / "cluster"
FILES = sorted(FOLDER.glob("*.sql"))
SHARDED = {"stream_revs", "stream_sockets", "verdicts", "replays", "rejected"}


def created(folder: pathlib.Path) -> dict[str, str]:
    """The statement of each table."""
    found = {}
    for path in sorted(folder.glob("*.sql")):
        if match := re.search(r"CREATE TABLE (\w+)", path.read_text(encoding="utf-8")):
            found[match.group(1)] = path.read_text(encoding="utf-8")
    return found


def test_they_are_made_of_the_others() -> None:
    """A file of schema/ that was added or changed is in schema/cluster, too."""
    done = subprocess.run([sys.executable, "deploy/cluster_schema.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An engine, for its parser."""
    opened = Store(tmp_path_factory.mktemp("parser") / "store")
    yield opened
    opened.close()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_clickhouse_reads_it(store: Store, path: pathlib.Path) -> None:
    """One statement, which the parser of the engine takes."""
    tree = store.select(f"EXPLAIN AST {path.read_text(encoding='utf-8')}")
    assert re.match(r"(Create|Alter)Query", str(tree[0][0])), tree[:5]


def test_no_table_is_forgotten() -> None:
    """Each of schema/ is there: on its own, or as the Distributed one over the shards' own."""
    assert {name for name in created(FOLDER) if not name.endswith("_local")} == set(created(FOLDER.parent))


def test_what_belongs_to_a_trace_is_sharded_by_it() -> None:
    """So that a stream's vantages, retries and verdicts meet on one shard, and every table with a trace in it is one of these."""
    tables = created(FOLDER)
    assert {name for name in tables if f"{name}_local" in tables} == SHARDED
    for name in SHARDED:
        assert f"Distributed('{{cluster}}', currentDatabase(), {name}_local, cityHash64(trace_id))" in tables[name]
        assert f"('/clickhouse/tables/{{shard}}/{{database}}/{name}', '{{replica}}'" in tables[f"{name}_local"]
    with_trace = {name for name, sql in created(FOLDER.parent).items() if re.search(r"^    trace_id ", sql, re.MULTILINE)}
    assert with_trace == SHARDED


def test_everything_else_is_on_every_shard() -> None:
    """One replicated table of all: its path in Keeper names no shard, each replica is named by its shard and its own name."""
    for name, sql in created(FOLDER).items():
        if name not in SHARDED and not name.endswith("_local"):
            assert f"('/clickhouse/tables/all/{{database}}/{name}', '{{shard}}-{{replica}}'" in sql


def test_a_retry_of_a_week_ago_is_known() -> None:
    """ClickHouse 25.10 lowered the window of deduplication to an hour."""
    for name, sql in created(FOLDER).items():
        assert "Distributed(" in sql or "replicated_deduplication_window_seconds = 604800" in sql, name
