"""Rows of `replays` from judgements, without a store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.builders.attribution import steps, vantage
from legato_ingest.attribution.counterfactual_rows import counterfactual_rows
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.judge import Evidence, Judgement, Thresholds, judge
from legato_ingest.attribution.model.vantage import Stream

TOOK = [20.0 + 300.0 * (n == 30) for n in range(60)]
ENDS = list(np.cumsum(TOOK))
RECORDS = EngineRecords(steps(TOOK, ENDS), server_offset=(0, 0), client_offsets={"clock": 0})
STALL_NS = 100_000_000


def judgement(records: EngineRecords | None = RECORDS, *, server: bool = True, held_ms: float = 0.0) -> Judgement:
    """Return the judgement of two streams with the same long step; the network path delayed the second from step 10 on."""
    several = []
    for number, held in ((0, 0.0), (1, held_ms)):
        sent = vantage(*ENDS)
        until = ENDS[10] + held
        received = vantage(*(max(end, until) if n >= 10 else end for n, end in enumerate(ENDS)))
        several.append(Stream("t", 0, b"t" * 16, bytes([number]) * 8, received, sent if server else None, "e", str(number), "clock"))
    return judge(Evidence(several, engine=records), Thresholds(100.0, 50.0))


def test_each_cause_of_each_stalled_stream_has_a_row() -> None:
    """The first stream had the long step only, the second also an outage before it."""
    rows = counterfactual_rows([judgement(held_ms=150.0)], STALL_NS, 10**9).to_pylist()
    found = {(row["span_id"][0], row["cause"]): (row["stalls"], row["stalls_min"], row["stalls_max"]) for row in rows}
    assert found == {(0, "host"): (1, 0, 0), (1, "host"): (2, 1, 1), (1, "connection"): (2, 1, 1)}
    first = rows[0]
    assert (first["stalled_us"], first["stalled_min_us"], first["engine_id"], first["tenant"]) == (320_000, 0, "e", "t")


@pytest.mark.parametrize(
    "judged",
    [judgement(None), judgement(server=False), judgement(replace(RECORDS, server_offset=None), server=False)],
    ids=["no steps", "no server", "no offset"],
)
def test_without_steps_sends_and_their_offset_there_are_none(judged: Judgement) -> None:
    """The empty table has the same types."""
    empty = counterfactual_rows([judged], STALL_NS, 10**9)
    assert len(judged.stalls) and not empty.num_rows
    assert empty.schema == counterfactual_rows([judgement()], STALL_NS, 10**9).schema
