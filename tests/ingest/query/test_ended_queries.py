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
    """Beside others or calls of Legato, the first end brings it under suspicion only; no statement is refused by itself."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for _ in range(3):
        for form in ("one", "other"):
            queries.ended("a", form, {"a"}, is_alone=False)
        now_s += 2
    assert is_allowed(queries, "one") and queries.is_suspect("a") and not queries.is_suspect("b")
    queries.ended("a", "one", {"a"}, is_alone=False)
    assert not is_allowed(queries, "one") and not is_allowed(queries, "new"), "three ends of the tenant"


def test_of_several_tenants_the_one_under_suspicion_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first end brings all under suspicion, for a minute. A tenant beside a suspect comes under suspicion, too."""
    queries, now_s = EndedQueries(), 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for tenant in ("a", "b"):
        queries.ended(tenant, "x", {"a", "b"}, is_alone=False)
    assert queries.is_suspect("a") and queries.is_suspect("b") and not queries._of_tenant
    for _ in range(3):
        now_s += 2
        for tenant in ("a", "c"):
            queries.ended(tenant, "x", {"a", "c"}, is_alone=False)
    assert not queries._of_tenant and queries.is_suspect("c"), "from then on a and c do not run together"
    queries.ended("c", "x", {"c"}, is_alone=False)
    assert len(queries._of_tenant["c"]) == 1
    now_s += 61
    assert not queries.is_suspect("b")
    queries.ended("b", "x", {"b", "d"}, is_alone=False)
    now_s += 599
    assert queries.is_suspect("b"), "what begins again lasts long"


def test_a_crash_is_charged_only_if_the_engine_had_a_fault() -> None:
    """A signal from outside, as by the kernel or an administrator, is the fault of no statement."""
    queries = EndedQueries()
    for _ in range(9):
        queries.crashed("a", "x", {"a"}, is_alone=True, is_fault=False)
    assert is_allowed(queries, "x") and not queries.is_suspect("a")
    for _ in range(9):
        queries.crashed("a", "x", {"a", "b"}, is_alone=False, is_fault=True)
    assert is_allowed(queries, "x") and queries.is_suspect("a")
    assert not queries._of_tenant
    for _ in range(2):
        queries.crashed("a", "x", {"a"}, is_alone=True, is_fault=True)
    assert not is_allowed(queries, "x")


def test_memory_is_bounded() -> None:
    """With always other statements that are answered or ended."""
    queries = EndedQueries()
    for number in range(20_000):
        queries.answered("a", str(number))
        queries.ended("a", f"bomb {number}", {"a"}, is_alone=True)
    assert len(queries._answered["a"]) == ended_queries._ANSWERED_MAX and len(queries._of_statement) == ended_queries._ENDED_MAX
    assert len(queries._of_tenant["a"]) <= ended_queries._ALL_OF_TENANT
