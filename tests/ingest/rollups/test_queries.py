"""The rollups' SQL: every figure equals an independent computation from the stored rows, also after other verdicts and other limits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import (
    HOUR_NS,
    MINUTE_NS,
    NOW_NS,
    SLOW,
    THEN_NS,
    committing,
    judge,
    judgements,
    one,
    rolled_at,
    rollup_worker,
    send,
    steps_of,
    streams_of,
)
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import KEYS, differences, expected, stored
from helpers.servers.reading import stream, streams_in
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply
from legato_ingest.storage.watermark import now_ms

# Values at the edges of what panels distinguish; None is NULL.
EDGES: Mapping[str, Sequence[float | None]] = {
    "duration_ns": (1, 2_000_000_999, 2_000_001_000, 30 * SECOND_NS),
    "ttfb_us": (None, 0, 1, 2, 255, 256, 257, 2**40),
    "ttft_us": (None, None, None, 0, 1, 1_999_999, 2_000_000, 2_000_001, 29_999_999, 30_000_000, 2**33),
    "ttfo_us": (None, None, None, 0, 2_000_000, 2_000_001, 2_345_678),
    "gaps": (None, 0, 1, 77),
    "gap_sum_us": (None, 0, 12_345_678_901),
    "gap_p99_us": (None, 0, 1, 2**20 - 1, 2**20, 399_999),
    "gap_max_us": (None, None, 0, 1, 249_999, 399_999, 400_000, 400_001, 2**21, 2**41),
    "jitter_ratio": (None, 0, 0.001, 0.5, 1, 1.024, 3.1415, 1e6),
    "stalls_250ms": (None, 0, 1, 9),
    "stalls_400ms": (None, 0, 3),
    "excess_250ms_us": (None, 0, 5_000_000_000),
    "chunks": (None, 0, 20),
    "chunks_dropped": (0, 0, 0, 1),
    "content_chunks": (None, None, 0, 1, 18),
    "content_bytes": (None, 0, 900),
    "wire_bytes": (None, 0, 4_400),
    "output_tokens": (None, 0, 1, 2, 900, 2**32 - 1),
    "multi_token_share": (None, 0, 0.1, 1),
    "head_burst": (None, 0, 3, 3.0001, 50),
    "otlp_bytes": (0, 1, 2**32 - 1),
}


OUTCOMES = ("complete", "client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort")


def edge_rows(rng: random.Random, rows: pa.Table, tenant: str = "") -> pa.Table:
    """Return rows with values that no recording combines: for new streams, or for the same streams of another tenant."""
    count = rows.num_rows
    replaced: dict[str, Sequence[Any]] = {name: rng.choices(values, k=count) for name, values in EDGES.items()}
    replaced["outcome"] = rng.choices(OUTCOMES, k=count)
    replaced["ended"] = rng.choices((True, True, True, False), k=count)
    replaced["next_due_us"] = rng.choices((0, 1, 10**12), k=count)
    if tenant:
        replaced["tenant"] = [tenant] * count
    else:
        replaced["trace_id"] = [rng.randbytes(16) for _ in range(count)]
    for name, values in replaced.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values).cast(rows.schema.field(place).type))
    return rows


def fill(store: Store, seed: int, requests: int = 2) -> None:
    """Insert streams, verdicts of two runs, replays and steps for two tenants with the same stream ids."""
    rng = random.Random(seed)
    for _ in range(requests):
        made = received_spans(streams_of(rng, 40), tenant="", now_ns=NOW_NS, limits=Limits())
        assert made.rejected.num_rows == 0
        revs = pa.concat_tables([made.revs, edge_rows(rng, made.revs)])
        revs = pa.concat_tables([revs, edge_rows(rng, revs, OTHER)])
        store.insert("stream_revs", revs)
        for ago_ms in (9_000, 5_000):
            verdicts, replays = judgements(rng, revs, NOW_NS // 10**6 - ago_ms)
            # Written twice, as after a repeated run.
            for _ in range(2):
                store.insert("verdicts", verdicts)
                store.insert("replays", replays)
    for tenant in ("", OTHER):
        for engine in ("e1", "e2"):
            store.insert("engine_steps", received_spans(steps_of(rng, engine, 150), tenant=tenant, now_ns=NOW_NS, limits=Limits()).steps)


OTHER = "it's\\ b"


@pytest.mark.parametrize("seed", range(2))
def test_every_column_equals_the_independent_computation(store: Store, seed: int) -> None:
    """All rollup tables: every key and every figure equals the result of a loop over the raw rows."""
    fill(store, seed)
    done = rollup_worker(store).step()
    wanted = expected(store)
    assert min(len(rows) for rows in wanted.values()) >= 8 and sum(map(len, wanted.values())) > 500
    assert differences(store) == []
    assert done.rows == sum(len(rows) for table, rows in wanted.items() if table.endswith("_minutes"))


def test_the_comparison_covers_every_figure(store: Store) -> None:
    """The comparison covers every column of every table, and every column has a value other than zero."""
    fill(store, 0)
    rollup_worker(store).step()
    blind = []
    for table, rows in expected(store).items():
        columns = {name for (name,) in store.select(f"SELECT name FROM system.columns WHERE database = 'default' AND table = '{table}'")}
        assert columns == {*KEYS[table], *next(iter(rows.values())), "rolled_at"}
        blind += [f"{table}.{name}" for name in next(iter(rows.values())) if not any(row[name] for row in rows.values())]
    assert blind == []


def test_the_newest_verdict_decides_the_side(store: Store) -> None:
    """A bad stream counts for the service until a verdict charges another side, and again after the next verdict or its withdrawal."""
    at_ms = now_ms()
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        worker = rollup_worker(store, committer.watermark_ms, lambda: at_ms)
        worker.step()
        for cause, side in JUDGED:
            at_ms += 1
            judge(store, at_ms, {"cause": cause, "gap_us": 9_000_000})
            assert worker.step().minutes == 1
            assert differences(store) == []
            (row,) = stored(store, "stream_minutes").values()
            found = {name: row[f"bad_{name}_clients"] for name in ("service", "connection", "reader") if row[f"bad_{name}_clients"]}
            assert found.keys() == {side} and row["bad_gap"] == 1
            assert [key[-2] for key in stored(store, "stall_minutes")] == [cause] * (cause != "base")
        assert worker.step().minutes == 0


JUDGED = (("host", "service"), ("consumer", "reader"), ("connection", "connection"), ("render", "reader"), ("base", "service"))


@pytest.mark.parametrize(
    ("attributes", "gap_us", "side"),
    [
        ({}, 9_000_000, "reader"),
        ({}, 450_000, "service"),
        ({"legato.stream.outcome": "timeout"}, 9_000_000, "service"),
        ({"legato.stream.outcome": "client_cancel"}, 9_000_000, "service"),
    ],
    ids=["the only fault", "not the longest gap", "before an error", "before an open gap"],
)
def test_an_end_user_is_charged_only_for_its_own_stalls(store: Store, attributes: dict[str, Any], gap_us: int, side: str) -> None:
    """One hold in a stream does not charge an engine's failure to the end user."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes={**SLOW, **attributes}, duration_ns=9 * SECOND_NS)])
    judge(store, now_ms(), {"cause": "consumer", "gap_us": gap_us})
    rollup_worker(store).again(0)
    (row,) = stored(store, "stream_minutes").values()
    assert row[f"bad_{side}_clients"] and differences(store) == []
    assert not row[f"bad_{'reader' if side == 'service' else 'service'}_clients"]


def test_several_stalls_count_for_the_service_then_the_path_then_the_end_user(store: Store) -> None:
    """The service precedes the network path, the path precedes the end user; stalls within the limit do not count."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
    stalls = [
        ("consumer", 9_000_000, "reader"),
        ("connection", 9_000_000, "connection"),
        ("host", 400_000, "connection"),
        ("host", 400_001, "service"),
    ]
    for place, (cause, gap_us, side) in enumerate(stalls):
        judge(store, now_ms(), {"cause": cause, "gap_us": gap_us, "gap_start_us": place})
        rollup_worker(store).again(0)
        (row,) = stored(store, "stream_minutes").values()
        assert len(row[f"bad_{side}_clients"]) == 1 and differences(store) == []


def test_one_span_with_two_starts_is_two_streams(store: Store) -> None:
    """As in `streams`: a verdict belongs to the start that it names, in any pass."""
    starts = [THEN_NS, THEN_NS + MINUTE_NS, THEN_NS + HOUR_NS]
    for rev, start in enumerate(starts, 1):
        made = received_spans(one("a", rev, start_ns=start, attributes=SLOW), tenant="", now_ns=NOW_NS, limits=Limits()).revs
        store.insert("stream_revs", made)
        verdicts, replays = judgements(random.Random(2), made, NOW_NS // 10**6, share=1)
        store.insert("verdicts", verdicts)
        store.insert("replays", replays)
    rollup_worker(store).step()
    assert differences(store) == []


def test_a_stream_with_an_unknown_start_is_not_late(store: Store) -> None:
    """However long it takes, in the view and in the rollups, and it has no TTFT."""
    unknown = {"legato.stream.start_unknown": True}
    streams_in(store, [stream((20.0,) * 200, 9_000.0, unknown), stream((20.0,) * 200, 9_000.0), stream((20.0, 900.0), 9_000.0, unknown)])
    rollup_worker(store).step()
    found = store.select("SELECT good, ttft_us IS NULL AND ttfo_us IS NULL FROM streams ORDER BY 1, 2")
    assert found == [(0, 0), (0, 1), (1, 1)]
    sums = "SELECT sum(judged), sum(good), sum(bad_gap), sum(bad_late), sum(length(ttft_buckets)) FROM stream_minutes FINAL"
    assert store.select(sums) == [(3, 1, 1, 1, 1)]


def test_other_limits_count_when_minutes_are_computed_again(store: Store) -> None:
    """Other limits take effect when minutes are recomputed, and not before: with stricter ones fewer streams are good."""
    fill(store, 7, requests=1)
    rollup_worker(store).step()
    good = store.select("SELECT sum(good), sum(judged) FROM stream_minutes FINAL")
    counts = []
    for gap_ms, first_ms in ((100, 1_000), (10**9, 10**9)):
        other = rollup_worker(store)
        default = Objective(name="default", gap_limit_ms=gap_ms, first_output_limit_ms=first_ms)
        assert apply(store, [default.model_copy(update={"name": f"over-{gap_ms}", "model": "m*"}), default])
        assert other.step().minutes == 0
        assert other.again(0)["minutes"] == len(rolled_at(store)) + len(rolled_at(store, "engine_minutes"))
        assert differences(store, gap_ms * 1000, first_ms * 1000) == []
        counts += store.select("SELECT sum(good), sum(judged) FROM stream_minutes FINAL")
        names = {name for (name,) in store.select("SELECT DISTINCT objective FROM stall_minutes FINAL WHERE stalls > 0")}
        assert names == {f"over-{gap_ms}", "default"}
    assert counts[0][0] < good[0][0] < counts[1][0] and {judged for _, judged in counts} == {good[0][1]}
