"""Ids of engines in SQL: a list of any length selects the rows of these engines, whatever the ids contain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_ingest.attribution.load import engine_ids
from legato_ingest.attribution.load.engine_ids import SERVER, is_behind, is_one_of
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import quoted, unquoted

texts = st.text("a,:'\0\\é", max_size=4)
keys = st.sets(st.tuples(st.sampled_from(["", "a", "b,c"]), texts), min_size=1, max_size=8)


@pytest.mark.parametrize("literals_max", [0, 256])
def test_the_condition_selects_these_engines(store: Store, monkeypatch: pytest.MonkeyPatch, literals_max: int) -> None:
    """Whether the ids are literals or one string."""
    monkeypatch.setattr(engine_ids, "_LITERALS_MAX", literals_max)

    @settings(max_examples=40, deadline=None)
    @given(keys, keys)
    def check(rows: set[EngineKey], wanted: set[EngineKey]) -> None:
        values = ", ".join(f"({quoted(tenant)}, {quoted(engine)})" for tenant, engine in rows)
        sql = f"SELECT tenant, engine_id FROM values('tenant String, engine_id LowCardinality(String)', {values}) WHERE {is_one_of(wanted)}"
        assert {(unquoted(tenant), unquoted(engine)) for tenant, engine in store.select(sql)} == rows & wanted

    check()


@pytest.mark.parametrize("engine", ["", "e", "e/1", "e/12", "e/", "/1", "1", "e/x", "e/1/2", "http://e:1/2", "e/1x", "e\n/1"])
def test_a_server_is_the_same_in_sql(store: Store, engine: str) -> None:
    """The condition selects an engine by its server, of the own tenant only."""
    is_own, is_other = (is_behind({(tenant, engine)}) for tenant in "ab")
    sql = f"SELECT {SERVER}, {is_own}, {is_other} FROM (SELECT 'a' AS tenant, {quoted(engine)} AS engine_id)"
    ((server, own, other),) = store.select(sql)
    assert (unquoted(server), bool(own), bool(other)) == (server_of(engine), True, False)


def test_two_hundred_thousand_ids_are_one_string(store: Store) -> None:
    """ClickHouse refuses a statement with more than 500,000 elements."""
    for tenants in (1, 2):
        engines = {(f"t{number % tenants}", f"{number:x}") for number in range(200_000)}
        ((found,),) = store.select(
            f"SELECT count() FROM values('tenant String, engine_id String', ('t0', '10'), ('t0', 'x')) WHERE {is_one_of(engines)}"
        )
        assert int(found) == 1
