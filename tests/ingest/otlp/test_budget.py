"""The budget of one request: chunks, memory of rows, days of each table, and rows of rejected items."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.otlp.batch import DAY_NS, Limits
from legato_ingest.otlp.budget import ITEMS_MAX, LISTED_MAX, POOL_MAX_BYTES, SHARE, Budget, OverBudget, recent_days

TODAY = 20_000
NOW_NS = TODAY * DAY_NS + 5
MIB = 2**20


def budget_of(body_bytes: int = 1_000, tenant: str = "", **limits: int) -> Budget:
    """Return the budget of a request that arrives at ``NOW_NS``."""
    return Budget.of(Limits(**limits), body_bytes, tenant, NOW_NS)


def place(day: int, last: int | None = None, table: str = "a") -> tuple[str, int, int]:
    """Return a place on a day, or from a day to another one."""
    return table, day * DAY_NS + 7, (day if last is None else last) * DAY_NS + 8


def taken(budget: Budget, *places: tuple[str, int, int]) -> bool:
    """Return whether an item with rows at these places is accepted."""
    try:
        budget.take(places, rows=1, row_bytes=0, item_bytes=0)
    except OverBudget as error:
        assert error.reason == "partition_budget"
        return False
    return True


def test_chunks_are_counted_over_all_items() -> None:
    """An item beyond the limit takes nothing, and a smaller one behind it is accepted."""
    budget = budget_of(chunks_per_request_max=100)
    for chunks, fits in ((60, True), (41, False), (40, True), (1, False)):
        try:
            budget.take((), rows=1, row_bytes=0, item_bytes=0, chunks=chunks)
            assert fits
        except OverBudget as error:
            assert not fits and error.reason == "chunk_budget"


def test_rows_of_four_times_their_item_are_always_accepted() -> None:
    """What exceeds that comes from the pool, which is the same for all items."""
    budget = budget_of(row_bytes_max=1_000)
    budget.take((), rows=1, row_bytes=1_400, item_bytes=100)
    with pytest.raises(OverBudget, match="too many"):
        budget.take((), rows=1, row_bytes=401, item_bytes=100)
    for _ in range(100):
        budget.take((), rows=1, row_bytes=400, item_bytes=100)


def test_an_item_of_a_few_bytes_takes_a_part_of_the_pool_only() -> None:
    """Steps of one byte each, as those of an idle engine, are accepted; a million of them in a hundred bytes are not."""
    budget = budget_of(65_536)
    budget.take((), rows=65_536, row_bytes=65_536 * 130, item_bytes=65_536)
    with pytest.raises(OverBudget, match="too many"):
        budget.take((), rows=65_536, row_bytes=65_536 * 130, item_bytes=100)


@pytest.mark.parametrize(("body", "rows", "row_bytes"), [(800_000, 8_192, 2_300), (300_000, 8_192, 2_300), (26_000_000, 8_192, 17_300)])
def test_requests_of_collectors_are_accepted(body: int, rows: int, row_bytes: int) -> None:
    """Points with 2 KB of attributes of their resource, also with a metric each, and streams of 1,000 chunks: 8,192 in one request."""
    budget, item = budget_of(body), body // rows
    for _ in range(rows // 1_024):
        part = budget.copy()
        for _ in range(1_024):
            part.take((), rows=1, row_bytes=row_bytes, item_bytes=item)
        budget = part


def test_the_tenant_is_in_every_row() -> None:
    """Its bytes are counted for each of them."""
    budget = budget_of(row_bytes_max=1_000, tenant="ü" * 50)
    budget.take((), rows=10, row_bytes=0, item_bytes=0)
    with pytest.raises(OverBudget):
        budget.take((), rows=1, row_bytes=0, item_bytes=0)


@given(st.integers(0, 64 * MIB))
def test_the_rows_of_a_request_are_bounded(body_bytes: int) -> None:
    """By 64 MiB and four times the body; by little for a small body."""
    budget = budget_of(body_bytes)
    assert budget.pool <= min(POOL_MAX_BYTES, 8 * MIB + 64 * body_bytes) and (SHARE, POOL_MAX_BYTES) == (4, 64 * MIB)


def test_a_table_has_rows_on_eight_days() -> None:
    """Today, yesterday and six others, for each table; further rows of a known day are always accepted."""
    budget = budget_of()
    assert all(taken(budget, place(TODAY - number)) for number in range(2, 8))
    assert not taken(budget, place(TODAY - 8)) and not taken(budget, place(TODAY + 1))
    assert taken(budget, place(TODAY)) and taken(budget, place(TODAY - 1)) and taken(budget, place(TODAY - 5))
    assert taken(budget, place(TODAY - 8, table="b"))
    assert budget.days == {"a": {TODAY - number for number in range(8)}, "b": {TODAY - 8}}


def test_an_item_on_several_days_is_accepted_as_a_whole() -> None:
    """Or takes none of its days: neither those of its table nor those of another one."""
    budget = budget_of()
    assert taken(budget, place(TODAY - 7, TODAY)) and len(budget.days["a"]) == 8
    budget = budget_of()
    assert not taken(budget, place(TODAY - 3_000, TODAY))
    assert not taken(budget, place(TODAY - 3), place(TODAY - 20, TODAY - 13, "b"))
    assert not budget.days.get("a") and not budget.days.get("b")


@given(st.lists(st.integers(-30, 2), max_size=60))
def test_many_times_at_once_are_taken_as_one_by_one(offsets: list[int]) -> None:
    """Data points are checked as columns; the same days are accepted, but recent ones first."""
    one, all_at_once = budget_of(), budget_of()
    times = np.array([(TODAY + offset) * DAY_NS for offset in offsets], np.int64)
    fits = all_at_once.take_times("a", times)
    expected = [taken(one, place(TODAY + offset)) for offset in offsets]
    assert fits.tolist() == expected and all_at_once.days.get("a", set()) == one.days.get("a", set())


def test_a_row_for_each_day_is_cheap() -> None:
    """Of 100,000 days today, yesterday and the first six are accepted."""
    fits = budget_of().take_times("a", np.arange(100_000) * DAY_NS)
    assert np.flatnonzero(fits).tolist() == [*range(6), TODAY - 1, TODAY]


def test_sizes_are_taken_from_the_first_row_on() -> None:
    """Rows within their share fit behind those that do not; rows that are not wanted take nothing."""
    budget = budget_of(row_bytes_max=1_000)
    sizes, items = np.array([900, 900, 50, 30, 900]), np.array([75, 75, 20, 10, 225])
    fits = budget.take_sizes(sizes, items, np.array([False, True, True, True, True]))
    assert fits.tolist() == [False, True, True, True, True] and budget.pool == 400
    assert budget.take_sizes(sizes, items, np.ones(5, np.bool_)).tolist() == [False, False, True, True, True]


def test_a_copy_can_be_spent_alone() -> None:
    """A small request that fails has used nothing; each has the whole pool of a small request."""
    budget = budget_of(64 * MIB)
    part = budget.copy()
    part.take([place(TODAY - 3)], rows=1, row_bytes=MIB, item_bytes=0)
    assert (part.pool, part.small_pool) == (budget.pool - MIB, 31 * MIB) and part.days and not budget.days
    assert part.copy().small_pool == 32 * MIB and part.copy().pool == part.pool


def test_so_many_items_are_listed() -> None:
    """The others are only counted."""
    budget = budget_of()
    assert sum(budget.lists() for _ in range(LISTED_MAX + 10)) == LISTED_MAX
    assert budget.items_max == ITEMS_MAX
    assert recent_days(NOW_NS) == (TODAY, TODAY - 1)
