"""The cluster schema: generated from `schema/`, parsed by ClickHouse's parser, sharded by trace id, replicated."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy import cluster_schema
from helpers.repo.repository import ROOT
from legato_ingest.storage import EmbeddedStore, Store

FOLDER = ROOT / "schema" / "cluster"
FILES = sorted(FOLDER.glob("*.sql"))
SHARDED = {"stream_revs", "stream_silences", "stream_sockets", "verdicts", "replays", "rejected"}


def created(folder: pathlib.Path) -> dict[str, str]:
    """Return the CREATE TABLE file of each table."""
    found = {}
    for path in sorted(folder.glob("*.sql")):
        if match := re.search(r"CREATE TABLE (\w+)", path.read_text(encoding="utf-8")):
            found[match.group(1)] = path.read_text(encoding="utf-8")
    return found


def test_the_files_are_generated_from_the_schema() -> None:
    """schema/cluster is what the generator makes of schema/."""
    done = subprocess.run([sys.executable, "deploy/cluster_schema.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An embedded store, used for its SQL parser."""
    opened = EmbeddedStore(tmp_path_factory.mktemp("parser") / "store")
    yield opened
    opened.close()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_clickhouse_parses_each_file(store: Store, path: pathlib.Path) -> None:
    """Each file is one statement that ClickHouse's parser accepts."""
    tree = store.select(f"EXPLAIN AST {path.read_text(encoding='utf-8')}")
    assert re.match(r"(Create|Alter)Query", str(tree[0][0])), tree[:5]


def test_no_table_is_missing() -> None:
    """The cluster has each table of schema/, either directly or as a Distributed table over local ones."""
    assert {name for name in created(FOLDER) if not name.endswith("_local")} == set(created(FOLDER.parent))


def test_tables_with_a_trace_id_are_sharded_by_it() -> None:
    """Every table with a trace id is sharded by it, so a stream's vantages, retries and verdicts are on one shard."""
    tables = created(FOLDER)
    assert {name for name in tables if f"{name}_local" in tables} == SHARDED
    for name in SHARDED:
        assert f"Distributed('{{cluster}}', currentDatabase(), {name}_local, cityHash64(trace_id))" in tables[name]
        assert f"('/clickhouse/tables/{{shard}}/{{database}}/{name}', '{{replica}}'" in tables[f"{name}_local"]
    with_trace = {name for name, sql in created(FOLDER.parent).items() if re.search(r"^    trace_id ", sql, re.MULTILINE)}
    assert with_trace == SHARDED


def test_all_other_tables_are_on_every_shard() -> None:
    """Their path in Keeper contains no shard, so all shards are replicas of one table, named by shard and replica."""
    for name, sql in created(FOLDER).items():
        if name not in SHARDED and not name.endswith("_local"):
            assert f"('/clickhouse/tables/all/{{database}}/{name}', '{{shard}}-{{replica}}'" in sql


def test_retries_are_deduplicated_for_a_week() -> None:
    """Every replicated table sets the deduplication window to a week; ClickHouse 25.10 lowered the default to an hour."""
    for name, sql in created(FOLDER).items():
        assert "Distributed(" in sql or "replicated_deduplication_window_seconds = 604800" in sql, name


def test_a_later_file_alters_the_tables_of_the_shards_too(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is added to the table of each shard and, without its codec, to the Distributed table; an index to the former only."""
    added = "ADD COLUMN IF NOT EXISTS color LowCardinality(String) CODEC(Delta, ZSTD(1))"
    later = {
        "0001_color.sql": f"-- A color.\nALTER TABLE verdicts\n    {added}\n",
        "0002_index.sql": "ALTER TABLE verdicts\n    ADD INDEX IF NOT EXISTS i color TYPE minmax\n",
        "0003_steps.sql": f"ALTER TABLE engine_steps\n    {added}\n",
    }
    for name, text in later.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(cluster_schema, "SOURCE", tmp_path)
    cluster = "ON CLUSTER '{cluster}'"
    assert list(cluster_schema.statements()) == [
        ("color_local", f"-- A color.\nALTER TABLE verdicts_local {cluster}\n    {added}\n"),
        (
            "color",
            f"-- The same for the Distributed table.\nALTER TABLE verdicts {cluster}\n    {added.partition(' CODEC')[0]}\n",
        ),
        ("index_local", f"ALTER TABLE verdicts_local {cluster}\n    ADD INDEX IF NOT EXISTS i color TYPE minmax\n"),
        ("steps", f"ALTER TABLE engine_steps {cluster}\n    {added}\n"),
    ]


def test_comments_are_on_the_table_that_readers_see(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two statements, because ClickHouse passes comments of both kinds in one statement to one replica only."""
    about, columns = "    MODIFY COMMENT 'One row, per x',", "    COMMENT COLUMN a 'x, y',\n    COMMENT COLUMN b 'z'"
    (tmp_path / "0001_verdicts_comments.sql").write_text(f"-- Why.\nALTER TABLE verdicts\n{about}\n{columns}\n", encoding="utf-8")
    monkeypatch.setattr(cluster_schema, "SOURCE", tmp_path)
    cluster = "ON CLUSTER '{cluster}'"
    assert list(cluster_schema.statements()) == [
        ("verdicts_comments", f"-- Why.\nALTER TABLE verdicts {cluster}\n{columns}\n"),
        (
            "verdicts_comments_table",
            f"-- The same for the table itself.\nALTER TABLE verdicts {cluster}\n    MODIFY COMMENT 'One row, per x'\n",
        ),
    ]


def test_settings_come_before_a_comment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Behind it, ClickHouse would take them for settings of the statement and refuse it."""
    made = "CREATE TABLE x\n(\n    a UInt8 COMMENT 'A'\n)\nENGINE = MergeTree\nORDER BY a\nCOMMENT 'One row per x'\n"
    (tmp_path / "0001_x.sql").write_text(made, encoding="utf-8")
    monkeypatch.setattr(cluster_schema, "SOURCE", tmp_path)
    ((_, text),) = cluster_schema.statements()
    assert text.endswith("\nCOMMENT 'One row per x'\n") and "\nSETTINGS replicated_deduplication_window" in text
    assert store.select(f"EXPLAIN AST {text}")
