"""Tests of the list of allowed functions against the functions of the installed engine."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

from helpers.servers.reading import open_store
from legato_ingest.query.sql_functions import allows, allows_table, named
from legato_ingest.storage import Store

# Names of functions that access files, network, processes, dictionaries, models, the host, secrets or other queries, or that wait.
DANGEROUS = re.compile(
    r"file(?!_)|^url$|s3|gcs|azure|hdfs|remote|cluster(?!ing)|python|chdb|executable|catboost|naivebayes(?!ngrams)|evalml|^ai[a-z]+|dict(?!ionaryof)|join(get)?$"
    r"|joinget|regionto|regionin|regionhier|getmacro|getserver|getmergetree|getsetting|globalvariable|getclient|authuser|authenticated|roles$"
    r"|profiles$|^sleep|certificate|addressto|demangle|filesystem|hostname|fqdn|tcpport|serveruuid|kernel|zookeeper|transaction|queryid"
    r"|query_id|connection|serialid|logtrace|flamegraph|aggthrow|hascolumnintable|crypt|threadfuzzer|^shard|buildid|^__|storetags|^tid$"
)
LOOK_WORSE_THAN_THEY_ARE = frozenset(("arrayjoin", "timeseriespredictlineartogrid"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Any store: the tests query its engine."""
    with open_store(tmp_path_factory.mktemp("functions") / "store") as opened:
        yield opened


def test_listed_functions_exist(store: Store) -> None:
    """Each name is an engine function of its kind; `lambda` and `exists` are syntax."""
    rows = store.select("SELECT lower(name), is_aggregate FROM system.functions")
    engine = {True: {name for name, aggregate in rows if aggregate}, False: {name for name, aggregate in rows if not aggregate}}
    assert named("plain") - engine[False] == {"lambda", "exists"}
    assert named("aggregate") <= engine[True]
    assert named("table") <= {name.lower() for (name,) in store.select("SELECT name FROM system.table_functions")}


def test_nothing_dangerous_is_allowed(store: Store) -> None:
    """No engine function with a dangerous name is allowed, and all functions are built in."""
    names = {name.lower() for (name,) in store.select("SELECT name FROM system.functions")}
    dangerous = {name for name in names if DANGEROUS.search(name)} - LOOK_WORSE_THAN_THEY_ARE
    assert len(dangerous) > 100
    assert sorted(name for name in dangerous if allows(name)) == []
    assert store.select("SELECT name FROM system.functions WHERE origin != 'System'") == []


def test_no_alias_opens_a_refused_function(store: Store) -> None:
    """An allowed alias of a forbidden function would be a hole."""
    rows = store.select("SELECT lower(name), lower(alias_to) FROM system.functions WHERE alias_to != ''")
    assert [(name, target) for name, target in rows if allows(name) and not allows(target)] == []


def test_table_functions_are_few(store: Store) -> None:
    """Only table functions without input."""
    engine = {name for (name,) in store.select("SELECT name FROM system.table_functions")}
    allowed = sorted(name for name in engine if allows_table(name))
    assert allowed == ["generateSeries", "generate_series", "null", "numbers", "numbers_mt", "primes", "values", "zeros", "zeros_mt"]


def test_unknown_names_are_refused() -> None:
    """A new function of a later engine must be reviewed first."""
    assert not allows("readTheWholeDisk") and not allows("") and not allows("OrNull") and not allows_table("readTheWholeDisk")


def test_combinators_stack_three_high() -> None:
    """Aggregates may have combinators; plain functions may not."""
    assert allows("sumIf") and allows("quantileExactIf") and allows("argMaxOrNullIf") and allows("uniqArrayStateIf") and allows("COUNTIF")
    assert not allows("lengthIf") and not allows("sumIfIfIfIf") and not allows("fileIf")


def test_the_list_is_in_lower_case() -> None:
    """Names are compared in lower case."""
    text = (pathlib.Path(__file__).parents[3] / "ingest/legato_ingest/query/sql_functions.txt").read_text(encoding="utf-8")
    names = " ".join(line for line in text.splitlines() if not line.startswith("#"))
    assert names == names.lower()
