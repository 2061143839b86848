"""Generate `schema/cluster/` from `schema/`: the same tables for a ClickHouse cluster.

    python deploy/cluster_schema.py [--check]

Tables with rows of a trace are sharded by the trace id, so the vantages, retries and verdicts of a stream are on the same shard. Tables
that every shard needs (engine steps, samples) and small tables (rollups, progress of the workers) are replicated to all shards. Queries do
not change: the Distributed table has the name of the original table, and the table of each shard is named `…_local`. The script connects to
no server.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE, TARGET = ROOT / "schema", ROOT / "schema" / "cluster"

# Tables with rows of a trace. All other tables are replicated to every shard.
SHARDED = frozenset(("stream_revs", "stream_silences", "stream_sockets", "verdicts", "replays", "rejected"))
_CREATE = re.compile(
    r"CREATE TABLE (?P<name>\w+)\n\((?P<columns>.*)\n\)\nENGINE = (?P<engine>\w*MergeTree)(?:\((?P<version>\w+)\))?\n(?P<rest>.*)",
    re.DOTALL,
)
_LIKE = re.compile(r"CREATE TABLE (?P<name>\w+) AS (?P<model>\w+)")
_ALTER = re.compile(r"ALTER TABLE (?P<name>\w+)\n(?P<rest>.*)", re.DOTALL)
# Comments only: that of the table, then those of the columns.
_COMMENT = re.compile(r"\s*MODIFY COMMENT\s")
# One week, because a retry can be that late. ClickHouse 25.10 reduced the default to one hour.
_WINDOW = "replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800"
_ON = "ON CLUSTER '{cluster}'"


def statements() -> Iterator[tuple[str, str]]:
    """Yield the name (without number) and the text of each file, in order."""
    created: dict[str, re.Match[str]] = {}
    for path in sorted(SOURCE.glob("[0-9]*.sql")):
        comment, sql = _parts(path.read_text(encoding="utf-8"))
        name = path.stem.partition("_")[2]
        if like := _LIKE.fullmatch(sql):
            yield name, comment + _table(like["name"], created[like["model"]], like["name"] in SHARDED)
        elif create := _CREATE.fullmatch(sql):
            created[create["name"]] = create
            sharded = create["name"] in SHARDED
            yield name + ("_local" if sharded else ""), comment + _table(create["name"], create, sharded)
            if sharded:
                yield name, f"-- The rows of `{create['name']}_local` on all shards.\n{_distributed(create['name'])}"
        elif alter := _ALTER.fullmatch(sql):
            yield from _altered(name, comment, alter)
        else:
            yield name, comment + re.sub(r"CREATE (OR REPLACE )?VIEW (\w+) AS", rf"CREATE \1VIEW \2 {_ON} AS", sql) + "\n"


def _parts(text: str) -> tuple[str, str]:
    """Split a file into the comment at its top and its statement."""
    lines = text.rstrip().splitlines()
    first = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return "".join(f"{line}\n" for line in lines[:first]), "\n".join(lines[first:])


def _table(name: str, model: re.Match[str], sharded: bool) -> str:
    version = f", {model['version']}" if model["version"] else ""
    where = ("{shard}", "{replica}") if sharded else ("all", "{shard}-{replica}")
    engine = f"Replicated{model['engine']}('/clickhouse/tables/{where[0]}/{{database}}/{name}', '{where[1]}'{version})"
    # A comment is last: settings behind it would be those of the statement.
    rest, is_commented, about = model["rest"].partition("\nCOMMENT ")
    rest = f"{rest}, {_WINDOW}" if "SETTINGS" in rest else f"{rest}\nSETTINGS {_WINDOW}"
    rest += is_commented + about
    return f"CREATE TABLE {name}{'_local' if sharded else ''} {_ON}\n({model['columns']}\n)\nENGINE = {engine}\n{rest}\n"


def _distributed(name: str) -> str:
    # Legato inserts with distributed_foreground_insert = 1, so an acknowledgement means that the shards have the rows.
    return (
        f"CREATE TABLE {name} {_ON} AS {name}_local\n"
        f"ENGINE = Distributed('{{cluster}}', currentDatabase(), {name}_local, cityHash64(trace_id))\nSETTINGS fsync_after_insert = 1\n"
    )


def _commented(name: str, comment: str, table: str, rest: str) -> Iterator[tuple[str, str]]:
    """The meaning of a table and its columns, on the table that readers see: two statements.

    ClickHouse runs a comment on every replica only if all clauses of its statement are of one kind. Otherwise one replica runs it, and the
    others do not learn of it.
    """
    about, _, columns = rest.partition(",\n")
    yield name, f"{comment}ALTER TABLE {table} {_ON}\n{columns}\n"
    yield f"{name}_table", f"-- The same for the table itself.\nALTER TABLE {table} {_ON}\n{about}\n"


def _altered(name: str, comment: str, alter: re.Match[str]) -> Iterator[tuple[str, str]]:
    table, rest = alter["name"], alter["rest"]
    if _COMMENT.match(rest):
        yield from _commented(name, comment, table, rest)
        return
    if table not in SHARDED:
        yield name, f"{comment}ALTER TABLE {table} {_ON}\n{rest}\n"
        return
    yield f"{name}_local", f"{comment}ALTER TABLE {table}_local {_ON}\n{rest}\n"
    if "ADD COLUMN" in rest:
        columns = re.sub(r" CODEC\((?:[^()]|\([^()]*\))*\)", "", rest)
        yield name, f"-- The same for the Distributed table.\nALTER TABLE {table} {_ON}\n{columns}\n"


def main() -> None:
    """Write the files; with --check, exit with an error if they differ."""
    wanted = {f"{number:04}_{name}.sql": text for number, (name, text) in enumerate(statements(), 1)}
    present = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.sql")}
    if "--check" in sys.argv[1:]:
        if different := sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name)):
            raise SystemExit(f"schema/cluster differs from schema/: {', '.join(different)}; run python deploy/cluster_schema.py")
        return
    TARGET.mkdir(exist_ok=True)
    for name in present.keys() - wanted.keys():
        (TARGET / name).unlink()
    for name, text in wanted.items():
        (TARGET / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
