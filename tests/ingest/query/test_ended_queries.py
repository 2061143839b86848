"""Statements that ended the process of the store: which are refused, for how long, and that other tenants are not affected."""

from __future__ import annotations

import pytest

from legato_ingest.errors import StoreRefused
from legato_ingest.query import ended_queries
from legato_ingest.query.ended_queries import EndedQueries, form_of


def is_allowed(queries: EndedQueries, form: str, tenant: str = "a") -> bool:
    """Return whether the statement may run."""
    try:
        queries.expect_allowed(tenant, form)
    except StoreRefused as error:
        assert error.code == 392 and "10 minutes" in str(error)
        return False
    return True


def test_the_form_leaves_out_the_time_range() -> None:
    """And nothing else; a statement of megabytes has a form, too."""
    assert form_of("SELECT toDateTime(1)") == form_of("SELECT toDateTime(2)") != form_of("SELECT toDateTime(1), 1")
    assert form_of("SELECT 1") != form_of("SELECT 2") and len(form_of("SELECT '\ud800" + "x" * 10**6 + "'")) == 64


def test_a_statement_is_refused_after_its_second_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ten minutes, and for its tenant alone."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    queries.ended("a", "bomb", {"a"}, is_alone=True)
    assert is_allowed(queries, "bomb")
    queries.ended("a", "bomb", {"a"}, is_alone=True)
    assert not is_allowed(queries, "bomb") and is_allowed(queries, "bomb", "b") and is_allowed(queries, "other")
    now_s += 599
    assert not is_allowed(queries, "bomb")
    now_s += 1
    assert is_allowed(queries, "bomb")


def test_always_another_statement_is_no_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three ends a tenant repeats what was answered before, and after six nothing; other tenants read on."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for panel in ("panel 1", "panel 2"):
        queries.answered("a", panel)
    queries.answered("a", "small at first")
    for number in range(3):
        assert is_allowed(queries, f"new {number}")
        queries.ended("a", f"new {number}", {"a"}, is_alone=True)
        now_s += 2
    assert not is_allowed(queries, "new 3") and is_allowed(queries, "panel 1") and is_allowed(queries, "small at first")
    queries.ended("a", "small at first", {"a"}, is_alone=True)
    assert not is_allowed(queries, "small at first"), "it counts as new from now on"
    for _ in range(2):
        now_s += 2
        queries.ended("a", "panel 2", {"a"}, is_alone=True)
    assert not is_allowed(queries, "panel 1") and is_allowed(queries, "new 3", "b")
    now_s += 600
    assert is_allowed(queries, "new 3")


def test_statements_of_one_tenant_are_charged_to_the_tenant_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside others or calls of Legato, the first end begins a suspicion, and counts with the second; no statement is refused by itself."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for ends in range(3):
        assert is_allowed(queries, "new") and len(queries._of_tenant.get("a", [])) == (ends if ends > 1 else 0)
        for form in ("one", "other"):
            queries.ended("a", form, {"a"}, is_alone=False)
        now_s += 2
    assert queries.is_suspect("a") and not queries.is_suspect("b")
    assert not is_allowed(queries, "new"), "three ends of the tenant"
    for _ in range(3):
        queries.ended("a", "one", {"a"}, is_alone=False)
        now_s += 2
    assert [round(at_s) for at_s in queries._of_tenant["a"]] == [1_000, 1_002, 1_004, 1_006, 1_008, 1_010]


def test_of_several_tenants_none_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are under suspicion for ten minutes after the last such end, and one that is the only one at an end is charged."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    assert not queries.has_suspects()
    for _ in range(2):
        for tenant in ("a", "b"):
            queries.ended(tenant, "x", {"a", "b"}, is_alone=False)
        now_s += 2
    assert queries.is_suspect("a") and queries.is_suspect("b") and queries.has_suspects() and not queries._of_tenant
    queries.ended("b", "x", {"b"}, is_alone=False)
    assert {tenant: len(ends) for tenant, ends in queries._of_tenant.items()} == {"b": 2}
    now_s += 598
    assert not queries.is_suspect("a") and queries.is_suspect("b")
    now_s += 2
    assert not queries.has_suspects()


@pytest.mark.parametrize("others", [1, 200])
def test_always_another_companion_is_no_way_around(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """A tenant with a bomb every 3 s ends the process six times in ten minutes; the others are never refused."""
    queries, now_s, ends = EndedQueries(), 1_000.0, 0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for number in range(200):
        now_s += 3
        innocent = f"b{number % others}"
        assert is_allowed(queries, f"panel {number}", innocent)
        if not is_allowed(queries, f"new {number}", "a"):
            continue
        # A statement of a suspect runs beside no other reader's, but beside calls of Legato.
        beside = {"a"} if queries.is_suspect("a") or queries.is_suspect(innocent) else {"a", innocent}
        ends += 1
        for tenant in beside:
            queries.ended(tenant, f"new {number}", beside, is_alone=False)
    assert ends == 3, "its statements are always new"


def test_a_crash_is_charged_only_if_the_engine_had_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal by an administrator is the fault of no statement; the first fault may be one of the engine's own work."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for _ in range(9):
        queries.crashed("a", {"a"}, is_fault=False)
    assert not queries.is_suspect("a")
    for _ in range(9):
        now_s += 2
        queries.crashed("a", {"a", "b"}, is_fault=True)
    assert is_allowed(queries, "x") and queries.is_suspect("a") and not queries._of_tenant
    for _ in range(2):
        now_s += 2
        queries.crashed("a", {"a"}, is_fault=True)
    assert not is_allowed(queries, "x")


def test_memory_is_bounded() -> None:
    """With always other statements of many tenants that are answered or ended."""
    queries = EndedQueries()
    for number in range(40_000):
        queries.answered(f"tenant {number % 1_000}", str(number))
        queries.ended("a", f"bomb {number}", {"a"}, is_alone=True)
    assert len(queries._answered) == ended_queries._ANSWERED_MAX and len(queries._of_statement) == ended_queries._ENDED_MAX
    assert len(queries._of_tenant["a"]) <= ended_queries._ALL_OF_TENANT
