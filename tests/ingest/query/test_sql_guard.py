"""Tests of the SQL guard on the real engine: every known escape is rejected, and every kind of read runs."""

from __future__ import annotations

import os
import pathlib
import pickle
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from helpers.repo.statements import ESCAPES, READS
from helpers.servers.reading import open_store, stream, streams_in
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreError, StoreRefused
from legato_ingest.query.sql_guard import Guard, Refused, bound
from legato_ingest.storage import Store

SECRET = "never-to-be-read"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema and three streams."""
    with open_store(tmp_path_factory.mktemp("guard") / "store") as opened:
        streams_in(opened, [stream(), stream(), stream()])
        yield opened


@pytest.fixture
def guard(store: Store) -> Guard:
    """A guard with an empty cache."""
    return guard_of(store)


def guard_of(store: Store) -> Guard:
    """A guard that parses in this store's engine."""
    return Guard(lambda sql, parameters, _: store.query_bytes(sql, parameters, "TabSeparatedRaw"))


def answer(store: Store, guard: Guard, text: str, parameters: Mapping[str, Any] | None = None) -> bytes:
    """The reply of the endpoint."""
    statement = guard.check(text, parameters or {})
    return store.query_bytes(statement.sql, bound(statement, parameters or {}), statement.format or "TabSeparated")


class Wire:
    """A parameter as the HTTP interface passes it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize("text", READS)
def test_statements_that_only_read_run(store: Store, guard: Guard, text: str) -> None:
    """The SQL of dashboards, reports and drivers passes, and runs."""
    answer(store, guard, text)


@pytest.mark.parametrize("text", ESCAPES)
def test_no_escape_gets_out(store: Store, guard: Guard, text: str, tmp_path: pathlib.Path) -> None:
    """The guard rejects each one before anything runs; no file is created, no secret is read, no table changes."""
    (tmp_path / "secret").write_text(SECRET)
    before = state(store)
    with pytest.raises(StoreRefused):
        guard.check(text.format(out=tmp_path / "out", secret=tmp_path / "secret"), {"t": Wire("users"), "c": Wire("dummy")})
    assert os.listdir(tmp_path) == ["secret"]
    assert state(store) == before


def state(store: Store) -> Any:
    """Everything in the store that a statement could change."""
    tables = store.select("SELECT name, engine, create_table_query FROM system.tables WHERE database = 'default' ORDER BY name")
    return tables, store.select("SELECT count(), sum(cityHash64(*)) FROM stream_revs")


def test_a_parameter_is_never_formatted_into_the_text(store: Store, guard: Guard, tmp_path: pathlib.Path) -> None:
    """The driver's %(name)s substitution would let a value end the statement after it was checked."""
    assert answer(store, guard, "SELECT '%(x)s'", {"x": Wire("")}) == b"%(x)s\n"
    evil = Wire(f" INTO OUTFILE $${tmp_path / 'out'}$$ -- ")
    assert answer(store, guard, "SELECT '%(x)s'", {"x": evil}) == b"%(x)s\n"
    assert answer(store, guard, "SELECT '%(x)s', {y:String}", {"x": evil, "y": Wire("y")}) == b"%(x)s\ty\n"
    assert answer(store, guard, "SELECT '$x$'", {"$x$": b"evil", "x": evil}) == b"$x$\n"
    assert os.listdir(tmp_path) == []


def test_a_cached_verdict_holds_for_other_values(store: Store, guard: Guard, tmp_path: pathlib.Path) -> None:
    """The engine binds values as values, for any content."""
    for value in ("a", "' INTO OUTFILE 'x", "x') UNION ALL SELECT file('/etc/hostname') --", "{y:Identifier}"):
        assert answer(store, guard, "SELECT {x:String} = 'a' OR 1", {"x": Wire(value)}) == b"1\n"
    assert answer(store, guard, "SELECT {xs:Array(String)}", {"xs": Wire("['a','b']")}) == b"['a','b']\n"


def test_a_tenant_cannot_see_what_another_one_asked(store: Store) -> None:
    """A cached answer comes sooner. Other values of the same tenant are answered from the cache."""
    calls = []

    def run(sql: str, parameters: Mapping[str, Any], tenant: str) -> bytes:
        calls.append(tenant)
        return store.query_bytes(sql, parameters, "TabSeparatedRaw")

    guard = Guard(run)
    for tenant, value in (("shop", "5"), ("shop", "5"), ("bank", "5"), ("bank", "5"), ("bank", "6")):
        guard.check("SELECT {x:String}, toDateTime(5)", {"x": Wire(value)}, tenant)
    assert [tenant for tenant in calls if tenant != ALL_TENANTS] == ["shop"] * 2 + ["bank"] * 2


def test_the_format_is_split_off(guard: Guard) -> None:
    """The FORMAT clause is returned separately, also with a keyword as its name; text that only looks like one stays."""
    cases = {
        "SELECT 1 FORMAT JSON": ("SELECT 1", "JSON"),
        "SELECT 1 format Null": ("SELECT 1", "Null"),
        "SELECT 1\nFORMAT\tNative ;": ("SELECT 1", "Native"),
        "EXPLAIN SELECT 1 FORMAT CSV": ("EXPLAIN SELECT 1", "CSV"),
        "SELECT ' FORMAT JSON'": ("SELECT ' FORMAT JSON'", None),
        "SELECT 1 AS `a FORMAT Null`": ("SELECT 1 AS `a FORMAT Null`", None),
        "SELECT 1 -- FORMAT JSON": ("SELECT 1", None),
    }
    for text, expected in cases.items():
        statement = guard.check(text, {})
        assert (statement.sql, statement.format) == expected


def test_syntax_errors_name_the_readers_statement(guard: Guard) -> None:
    """The engine's message, without the statement that the guard wrapped around it."""
    with pytest.raises(StoreRefused, match="failed at position 18 .*SYNTAX_ERROR") as raised:
        guard.check("SELECT FROM WHERE", {})
    assert raised.value.code == 62 and "formatQuery" not in str(raised.value)


def test_refusals_name_the_function_and_what_is_accepted(guard: Guard) -> None:
    """Code and text of a rejection."""
    with pytest.raises(Refused, match=r"the function file is not allowed\. This endpoint only reads: it runs one SELECT, ") as raised:
        guard.check("SELECT file('x')", {})
    assert raised.value.code == 497


def test_names_of_stacked_combinators_are_refused_at_once(guard: Guard) -> None:
    """Each suffix can be split in several ways: without a limit this takes 2^40 steps."""
    started = time.perf_counter()
    with pytest.raises(Refused):
        guard.check("SELECT nope" + "OrNull" * 40 + "(1)", {})
    assert time.perf_counter() - started < 20


def test_the_cache_is_bounded(guard: Guard) -> None:
    """The cache keeps 8,192 statements, and none above 32 KiB."""
    guard.check(f"SELECT '{'x' * 40_000}'", {})
    assert len(guard._cache) == 0
    statement = guard.check("SELECT 1", {})
    for number in range(9_000):
        guard._keep((f"SELECT {number}", ALL_TENANTS), statement)
    assert len(guard._cache) == 8_192
    with pytest.raises(StoreRefused, match="at most 262144"):
        guard.check("SELECT 1" + " " * 300_000, {})


def test_the_cache_is_bounded_in_bytes(guard: Guard) -> None:
    """One character may take four bytes, and the parser may write two for one: 1,024 long statements take no 400 MB."""
    for number in range(250):
        guard.check(f"SELECT '{number}\U0001f600" + "\n" * 31_000 + "'", {})
        # The store's process gets a statement pickled, which keeps the text's UTF-8 beside the text.
        pickle.dumps(list(guard._cache))
    kept = sum(sys.getsizeof(text) for text, _ in guard._cache)
    assert 2 * 2**20 < kept < 32 * 2**20 and len(guard._cache) < 200 and 0 < guard._cache_bytes <= 32 * 2**20


WORDS = (
    "SELECT|1|*|,|(|)|FROM|WHERE|IN|AS|x|`y`|'s'|'it''s'|numbers(3)|system.one|streams|stream_revs|UNION ALL|EXCEPT|WITH|c|INTO OUTFILE|"
    "'{out}'|file('{out}')|`file`|INSERT INTO|VALUES|FUNCTION|DROP TABLE|TRUNCATE|SETTINGS|readonly = 0|FORMAT|CSV|;|--|/*|*/|$$|\\|'|`|\"|"
    "EXPLAIN|AST|DESCRIBE|SHOW|TABLES|EXISTS|PARALLEL WITH|{{p:String}}|%(p)s|\u2028|\n|\u00a0|ALTER TABLE|DELETE WHERE 1|"
    "SET|ORDER BY|LIMIT"
).split("|")


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(["", "SELECT 1 ", "SELECT * FROM streams ", "EXPLAIN SELECT 1 "]))
def test_no_statement_writes(store: Store, guard: Guard, tmp_path: pathlib.Path, words: list[str], start: str) -> None:
    """For any statement and any value: no file is created and nothing changes in the store."""
    text = start + " ".join(words).replace("{out}", str(tmp_path / "out")).replace("{{", "{").replace("}}", "}")
    try:
        answer(store, guard, text, {"p": Wire(f" INTO OUTFILE $${tmp_path / 'out'}$$ --")})
    except StoreError:
        pass
    assert os.listdir(tmp_path) == []
    assert store.select("SELECT count() FROM stream_revs") == [(3,)]


def test_an_allowed_statement_costs_little(store: Store, guard: Guard) -> None:
    """A new statement is checked in milliseconds, a cached one in microseconds (the bounds are those of a loaded machine)."""
    texts = [
        f"SELECT model, count() AS n{i}, quantile(0.99)(gap_max_us) FROM streams WHERE vantage = 'client' GROUP BY 1" for i in range(50)
    ]
    guard.check("SELECT 1", {})

    def median_s() -> float:
        times_s = [time.perf_counter()]
        for text in texts:
            guard.check(text, {})
            times_s.append(time.perf_counter())
        return statistics.median(later - earlier for earlier, later in pairwise(times_s))

    assert median_s() < 0.05
    assert median_s() < 0.001


def test_only_legatos_own_database_is_open(store: Store) -> None:
    """On a shared server no other database is allowed, not even `default`, also not on the right side of IN."""
    own = Guard(lambda sql, parameters, _: store.query_bytes(sql, parameters, "TabSeparatedRaw"), "legato")
    for sql in (
        "SELECT count() FROM legato.streams",
        "SELECT count() FROM streams AS s WHERE s.vantage IN ('a') AND s.chunks NOT IN (SELECT 1)",
    ):
        assert own.check(sql, {}).sql
    refused = [
        "SELECT * FROM default.x",
        "EXISTS TABLE default.x",
        "SELECT * FROM other.x",
        "SHOW CREATE TABLE default.x",
        "SELECT in(1, other.x)",
    ]
    for how in ("IN", "NOT IN", "GLOBAL IN", "GLOBAL NOT IN"):
        refused += [f"SELECT (1, 2) {how} {table}" for table in ("default.x", "other.x")]
    for sql in refused:
        with pytest.raises(Refused):
            own.check(sql, {})
