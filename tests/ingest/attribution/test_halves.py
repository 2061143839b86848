"""What the store refuses because of one tenant is done for all others."""

from __future__ import annotations

import pytest

from legato_ingest.attribution.halves import by_halves
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.storage import Store

TENANTS = [f"tenant-{number}" for number in range(50)]


TOO_MUCH, OUT_OF_MEMORY = StoreRefused("too much"), StoreUnavailable("memory limit exceeded", 241)


def act_on(store: Store, refused: set[str], error: Exception = TOO_MUCH) -> tuple[list[str], int]:
    """Return the tenants for which the work was done, and the number of parts that were left out."""
    failures: list[Exception] = []

    def act(condition: str) -> list[str]:
        found = [str(name) for (name,) in store.select(f"SELECT arrayJoin({TENANTS}) AS tenant WHERE {condition}")]
        if refused & set(found) or "all" in refused:
            raise error
        return found

    return [name for part in by_halves(act, "1", failures.append) for name in part], len(failures)


@pytest.mark.parametrize("error", [TOO_MUCH, OUT_OF_MEMORY])
@pytest.mark.parametrize("refused", [set(), {"tenant-7"}, {"tenant-7", "tenant-8", "tenant-30"}])
def test_all_tenants_but_the_refused_have_their_turn(store: Store, refused: set[str], error: Exception) -> None:
    """Once each."""
    done, failures = act_on(store, refused, error)
    assert sorted(done) == sorted(set(TENANTS) - refused)
    assert failures == len(refused)


def test_other_errors_and_a_store_that_refuses_everything_are_raised(store: Store) -> None:
    """Nothing is left out then: the next run repeats it."""
    with pytest.raises(StoreUnavailable):
        act_on(store, {"tenant-7"}, StoreUnavailable("time limit exceeded", 159))
    with pytest.raises(StoreRefused):
        act_on(store, {"all"})


def test_a_store_without_memory_for_anything_leaves_nothing_out() -> None:
    """The run fails before a part is small enough to be left out."""
    failures: list[Exception] = []

    def act(condition: str) -> None:
        raise OUT_OF_MEMORY

    with pytest.raises(StoreUnavailable):
        list(by_halves(act, "1", failures.append))
    assert failures == []
