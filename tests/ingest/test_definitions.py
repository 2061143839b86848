"""The functions that several rooms share: the server of an engine, and the division of rows by their tenants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from legato_ingest.definitions import by_tenant, server_of


def test_each_tenant_has_its_rows_in_their_order() -> None:
    """Tenants come in the order of their first row."""
    rows = [SimpleNamespace(tenant=tenant, number=number) for number, tenant in enumerate("bab")]
    found = by_tenant(rows)
    assert list(found) == ["b", "a"] and [each.number for each in found["b"]] == [0, 2] and by_tenant([]) == {}


@pytest.mark.parametrize(("engine", "server"), [("a/3", "a"), ("a/b/12", "a/b"), ("a", "a"), ("a/b", "a/b"), ("a/", "a/"), ("", "")])
def test_a_rank_belongs_to_its_server(engine: str, server: str) -> None:
    """Only a number behind the last slash is a rank."""
    assert server_of(engine) == server
