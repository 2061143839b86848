"""The tables of a migrated store are those that the files declare."""

from __future__ import annotations

import re

import pytest

from helpers.repo.schema import FILES, MADE, altered
from helpers.servers.reading import stream, streams_in
from legato_ingest.storage import Store

# These change rows or parts, or only comments.
MUTATES = re.compile(r"^    (UPDATE|MATERIALIZE|MODIFY COMMENT|COMMENT COLUMN)\b", re.MULTILINE)
COMMENT = re.compile(r" COMMENT '(?:[^'\\]|\\.|'')*'")
# Marks by which `storage.retention` finds a TTL in the text of a table.
MARKS = ("`", "TTL", "ORDER BY", " INDEX ", ") ENGINE ")
ADDED = re.compile(r"\(ADD (?:COLUMN |(INDEX ))IF NOT EXISTS (.+?)\)(?=, \(ADD|$)")
SETTING = re.compile(r"\(MODIFY SETTING (.+)\)$")


@pytest.mark.parametrize("name", MADE)
def test_the_store_holds_what_the_file_declares(shared_store: Store, name: str) -> None:
    """Columns with types and codecs, keys, engine, TTL and settings, as ClickHouse prints them, and what later files added."""
    declared = _plain(_formatted(shared_store, MADE[name].read_text(encoding="utf-8")))
    if like := re.fullmatch(r"CREATE TABLE (\w+) AS (\w+)", declared):
        model = _plain(_formatted(shared_store, MADE[like[2]].read_text(encoding="utf-8")))
        declared = model.replace(f"CREATE TABLE {like[2]} ", f"CREATE TABLE {like[1]} ")
    for later in (each for each in FILES if altered(each) == name and not MUTATES.search(each.read_text(encoding="utf-8"))):
        sql = _plain(_formatted(shared_store, later.read_text(encoding="utf-8")))
        if setting := SETTING.search(sql):
            declared += f", {setting[1]}"
            continue
        added = ["".join(each) for each in ADDED.findall(sql)]
        assert added
        # ClickHouse prints columns before indices.
        before = ", INDEX" if ", INDEX" in declared and not added[0].startswith("INDEX") else ") ENGINE"
        declared = declared.replace(before, f", {', '.join(added)}{before}", 1)
    assert _stored(shared_store, name) == declared


def _stored(store: Store, name: str) -> str:
    ((stored,),) = store.select(f"SELECT create_table_query FROM system.tables WHERE database = 'default' AND name = '{name}'")
    return _plain(str(stored))


def _formatted(store: Store, sql: str) -> str:
    ((text,),) = store.select("SELECT formatQuerySingleLine({sql:String})", {"sql": sql})
    return str(text)


def _plain(sql: str) -> str:
    """Remove what ClickHouse adds: the database, quotes, defaults, the column list of a view, brackets after the name of a codec.

    Comments are removed, too.
    """
    sql = (
        COMMENT.sub("", sql)
        .replace("`", "")
        .replace("Delta(8)", "Delta")
        .replace("Delta(4)", "Delta")
        .replace("default.", "")
        .replace("index_granularity = 8192, ", "")
        .replace(", index_granularity = 8192", "")
        # Set for an embedded store after the files were applied: `Store.keep_merged_parts`.
        .replace(", old_parts_lifetime = 120", "")
        .replace(" SETTINGS old_parts_lifetime = 120", "")
        .replace("CREATE OR REPLACE VIEW", "CREATE VIEW")
    )
    sql = re.sub(r"(VIEW streams) \(.*?\) AS SELECT \*", r"\1 AS SELECT *", sql)
    sql = re.sub(r"(VIEW \w+) \(.*?\) AS \(?SELECT (tenant|rank)", r"\1 AS SELECT \2", sql)
    sql = re.sub(r"(VIEW streams) \(.*\) AS \(?SELECT", r"\1 AS SELECT", sql)
    return re.sub(r"INTERVAL (\d+) (\w+)", lambda match: f"toInterval{match.group(2).title()}({match.group(1)})", sql)


def test_every_object_of_the_store_is_declared(shared_store: Store) -> None:
    """The store has no table or view without a file."""
    names = {str(name) for (name,) in shared_store.select("SELECT name FROM system.tables WHERE database = 'default'")}
    assert names == set(MADE)


def test_tenant_is_first_in_every_key_of_data(shared_store: Store) -> None:
    """So a query of one tenant reads only the granules of that tenant."""
    rows = shared_store.select("SELECT name, sorting_key FROM system.tables WHERE database = 'default' AND sorting_key != ''")
    keys = {str(name): str(key) for name, key in rows if name != "schema_migrations"}
    assert keys and all(key.startswith("tenant") for key in keys.values())


def test_every_column_has_a_comment(shared_store: Store) -> None:
    """Each table, each view and each of their columns says what it holds, in `system.tables`, `system.columns` and DESCRIBE TABLE."""
    tables = shared_store.select("SELECT name, comment FROM system.tables WHERE database = 'default'")
    columns = shared_store.select("SELECT table || '.' || name, comment FROM system.columns WHERE database = 'default'")
    missing = {str(name) for name, comment in (*tables, *columns) if not comment}
    assert len(tables) >= 25 and missing == set()


def test_comments_do_not_disturb_the_retention(shared_store: Store) -> None:
    """`storage.retention` reads the declaration of a table; a comment with one of its marks would be taken for a TTL."""
    sources = ("columns", "tables")
    of_all = " UNION ALL ".join(f"SELECT comment FROM system.{source} WHERE database = 'default'" for source in sources)
    comments = shared_store.select(of_all)
    assert not [comment for (comment,) in comments if any(mark in comment for mark in MARKS)]


def test_the_engine_of_a_trace_is_that_of_its_servers(store: Store) -> None:
    """One row per trace and day, also with snapshots; no engine where several served the trace; a condition on the day prunes."""
    day_s = 86_400.0
    client, server = {"legato.stream.vantage": "client"}, {"legato.stream.vantage": "server"}
    on = [{**server, "legato.engine.id": f"engine-{number}"} for number in range(3)]
    traces = [bytes([number]) * 16 for number in (1, 2, 3)]
    streams_in(
        store,
        [
            stream(attributes=client, trace_id=traces[0]),
            stream(attributes={**on[0], "legato.stream.rev": 1}, trace_id=traces[0], span_id=b"snapshot", age_s=70.0),
            stream(attributes={**on[0], "legato.stream.rev": 2}, trace_id=traces[0], span_id=b"snapshot", age_s=70.0),
            stream(attributes=on[1], trace_id=traces[1]),
            stream(attributes=on[2], trace_id=traces[1]),
            stream(attributes=on[2], trace_id=traces[2], age_s=9 * day_s),
            stream(attributes={**client, "legato.engine.id": "engine-9"}, trace_id=b"c" * 16),
        ],
    )
    engines = "SELECT trace_id, engine_id, engine_ids FROM stream_engines {} ORDER BY trace_id"
    rows = [(traces[0], "engine-0", ["engine-0"]), (traces[1], "", ["engine-1", "engine-2"]), (traces[2], "engine-2", ["engine-2"])]
    assert [(bytes(trace), engine, ids) for trace, engine, ids in store.select(engines.format(""))] == rows
    recent = engines.format("WHERE day >= today() - 2")
    assert [(bytes(trace), engine, ids) for trace, engine, ids in store.select(recent)] == rows[:2]
    parts = next(str(line) for (line,) in store.select(f"EXPLAIN indexes = 1 {recent}") if "Parts: " in str(line) and "/" in str(line))
    assert parts.endswith("1/2")
