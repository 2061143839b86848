"""The progress of the attribution over shards: the least of those that are asked for, each as far as any run came with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.periodic import record_run
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS, SHARDS, judged_until_ms, least_until_ms

SETS = st.integers(0, ALL_SHARDS)


@given(st.lists(st.tuples(SETS, st.integers(0, 10**6)), max_size=6), SETS)
def test_it_is_the_least_of_each_shards_newest_run(runs: list[tuple[int, int]], shards: int) -> None:
    """The definition, shard by shard; a shard that was never judged is at 0."""
    newest = [max((until for own, until in runs if own >> shard & 1), default=0) for shard in range(SHARDS) if shards >> shard & 1]
    assert least_until_ms(runs, shards) == min(newest, default=0)


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
