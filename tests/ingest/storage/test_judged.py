"""The progress of the attribution over shards and tenants: the least of those that are asked for, each as far as any run came with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.periodic import record_run
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS, SHARDS, Progress, aside_columns, judged_until, judged_until_ms, least_of

SETS = st.integers(0, ALL_SHARDS)
TIMES = st.integers(0, 10**6)
PROGRESS = st.builds(Progress, TIMES, st.dictionaries(st.sampled_from(["shop", "bank", 7]), TIMES, max_size=3))


def until_ms(progress: Progress, tenant: str | int) -> int:
    """Until when the streams of a tenant are judged."""
    return progress.aside.get(tenant, progress.others_ms)


@given(st.lists(st.tuples(SETS, st.builds(Progress, TIMES)), max_size=6), SETS)
def test_it_is_the_least_of_each_shards_newest_run(runs: list[tuple[int, Progress]], shards: int) -> None:
    """The definition, shard by shard; a shard that was never judged is at 0."""
    newest = [max((run.others_ms for own, run in runs if own >> shard & 1), default=0) for shard in range(SHARDS) if shards >> shard & 1]
    assert least_of(runs, shards) == Progress(min(newest, default=0))


@given(st.lists(st.tuples(SETS, PROGRESS), max_size=6), SETS)
def test_a_tenant_is_judged_until_what_the_newest_run_of_each_shard_says(runs: list[tuple[int, Progress]], shards: int) -> None:
    """Of runs with one time that with less behind is newer. What the result says was judged, a run says of each shard."""
    found = least_of(runs, shards)
    assert all(ms < found.others_ms for ms in found.aside.values())
    for tenant in ("shop", "bank", 7, "other"):
        for shard in (shard for shard in range(SHARDS) if shards >> shard & 1):
            claims = [until_ms(run, tenant) for own, run in runs if own >> shard & 1]
            assert until_ms(found, tenant) <= max(claims, default=0)


def recorded(store: Store, progress: Progress, shards: int = ALL_SHARDS) -> Progress:
    """Record a run, and return the progress of these shards."""
    times = {"until": progress.least_ms, "others_until": progress.others_ms}
    record_run(store, "attribution_runs", times, {"streams": 1, "verdicts": 2, "shards": shards}, 0.0, aside_columns(progress))
    return judged_until(store, shards)


def test_a_row_is_the_whole_progress_of_its_shards(store: Store) -> None:
    """Each tenant that is not in the newest row is with the others, whatever earlier rows say."""
    store.command("TRUNCATE TABLE attribution_runs")
    first = Progress(5000, {"shop": 0, "d\u00e9j\u00e0-'vu'": 3000, 2**20 - 1: 4999})
    assert recorded(store, first) == first and judged_until_ms(store) == 0
    half = Progress(6000, {"shop": 4000})
    assert recorded(store, half, 3) == half
    assert judged_until(store) == Progress(5000, {**first.aside}), "the other shards are behind"
    # Nothing was received since, and the clock of the host was set back.
    assert recorded(store, Progress(6000), 3) == Progress(6000)
    store.command("INSERT INTO attribution_runs SELECT * REPLACE (ran_at - 60 AS ran_at) FROM attribution_runs WHERE shards = 3")
    assert judged_until(store, 3) == Progress(6000)
    assert recorded(store, Progress(7000)) == Progress(7000)


def test_runs_of_an_earlier_version_are_about_all_shards(store: Store) -> None:
    """Their rows lack the column; later rows of some shards do not hide that the others are behind."""
    store.command("TRUNCATE TABLE attribution_runs")
    assert judged_until_ms(store) == 0
    store.command("INSERT INTO attribution_runs (until, ran_at) SELECT fromUnixTimestamp64Milli(5000), now()")
    assert judged_until_ms(store) == judged_until_ms(store, 1) == 5000
    record_run(store, "attribution_runs", {"until": 9000}, {"streams": 1, "verdicts": 2, "shards": 3}, 0.0)
    assert (judged_until_ms(store), judged_until_ms(store, 1), judged_until_ms(store, 3), judged_until_ms(store, 7)) == (
        5000,
        9000,
        9000,
        5000,
    )
