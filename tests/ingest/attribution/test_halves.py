"""What the store refuses because of one tenant is done for all others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from legato_ingest.attribution.halves import Short, by_halves
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.storage import Store
from legato_ingest.storage.tenant_parts import in_part, in_parts

TENANTS = [f"tenant-{number}" for number in range(50)]
MANY = [f"tenant-{number}" for number in range(300)]
TOO_MUCH, OUT_OF_MEMORY = StoreRefused("too much"), StoreUnavailable("memory limit exceeded", 241)


def act_on(
    store: Store, refused: set[str], error: Exception = TOO_MUCH, tenants: Sequence[str] = TENANTS, short: Short | None = None
) -> tuple[list[str], int]:
    """Return the tenants for which the work was done, and the number of parts that were left out."""
    failures: list[Exception] = []

    def act(condition: str) -> list[str]:
        found = named(store, condition, tenants)
        if refused & set(found) or "all" in refused:
            raise error
        return found

    return [name for part in by_halves(act, "1", failures.append, short) for name in part], len(failures)


def named(store: Store, condition: str, tenants: Sequence[str] = TENANTS) -> list[str]:
    """Return the tenants that satisfy a condition."""
    return [str(name) for (name,) in store.select(f"SELECT arrayJoin({list(tenants)}) AS tenant WHERE {condition}")]


@pytest.mark.parametrize("error", [TOO_MUCH, OUT_OF_MEMORY])
@pytest.mark.parametrize("refused", [set(), {"tenant-7"}, {"tenant-7", "tenant-8", "tenant-30"}])
def test_all_tenants_but_the_refused_have_their_turn(store: Store, refused: set[str], error: Exception) -> None:
    """Once each."""
    done, failures = act_on(store, refused, error)
    assert sorted(done) == sorted(set(TENANTS) - refused)
    assert failures == len(refused)


@pytest.mark.parametrize("count", [12, 60])
def test_many_refused_tenants_stop_no_other(store: Store, count: int) -> None:
    """Every run failed with nine of them among 300 tenants: more than 128 statements are refused until each is alone."""
    refused = set(MANY[:: len(MANY) // count][:count])
    done, failures = act_on(store, refused, tenants=MANY)
    assert sorted(done) == sorted(set(MANY) - refused)
    assert failures == count


def test_a_store_that_refuses_too_many_parts_leaves_nothing_out() -> None:
    """The number of statements is bounded also if a part succeeds now and then."""
    failures, parts = list[Exception](), list[str]()

    def act(condition: str) -> None:
        parts.append(condition)
        if len(parts) % 100:
            raise TOO_MUCH

    with pytest.raises(StoreRefused):
        list(by_halves(act, "1", failures.append))
    assert failures == [] and len(parts) < 15_000


def test_what_the_store_has_no_memory_for_is_named(store: Store) -> None:
    """It can be tried again, and the others without it. What is refused for another reason is left out."""
    short: Short = {}
    refused = {"tenant-7", "tenant-8"}
    assert act_on(store, refused, OUT_OF_MEMORY, short=short)[1] == 0
    assert {name for number in short for name in named(store, in_part(number))} == refused
    assert sorted(named(store, f"NOT {in_parts(short)}")) == sorted(set(TENANTS) - refused)
    assert all(error.__traceback__ is None for error in short.values()), "its frames hold what was loaded"
    other: Short = {}
    assert act_on(store, refused, TOO_MUCH, short=other)[1] == 2 and other == {}


def test_other_errors_and_a_store_that_refuses_everything_are_raised(store: Store) -> None:
    """Nothing is left out then: the next run repeats it."""
    with pytest.raises(StoreUnavailable):
        act_on(store, {"tenant-7"}, StoreUnavailable("time limit exceeded", 159))
    with pytest.raises(StoreRefused):
        act_on(store, {"all"})


def test_a_store_without_memory_for_anything_leaves_nothing_out() -> None:
    """The run fails after some statements."""
    failures, short, parts = list[Exception](), Short(), list[str]()

    def act(condition: str) -> None:
        parts.append(condition)
        raise OUT_OF_MEMORY

    with pytest.raises(StoreUnavailable):
        list(by_halves(act, "1", failures.append, short))
    assert failures == [] and short == {} and len(parts) < 200
