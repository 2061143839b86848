"""Rows of `verdicts` from judgements, without a store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.builders.attribution import steps, vantage
from legato_ingest.attribution.counterfactual_rows import counterfactual_rows
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.judge import Evidence, Judgement, Thresholds, judge
from legato_ingest.attribution.model.judgements import Judgements
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.verdict_rows import verdict_rows, withdrawn_rows

TOOK = [20.0 + 300.0 * (n == 30) for n in range(60)]
ENDS = list(np.cumsum(TOOK))
RECORDS = EngineRecords(steps(TOOK, ENDS), server_offset=(0, None), client_offsets={"clock": 0}, last_step={"r": 59})
THRESHOLDS = Thresholds(100.0, 50.0)
JUDGED_AT_NS = 1_800_000_000_123_000_000


def judgement(*, server: bool = True, engine: bool = True, **evidence: Any) -> Judgement:
    """Return the judgement of one stream with one step that took 300 ms longer."""
    sent, received = (vantage(*(end + more for end in ENDS)) for more in (1, 2))
    stream = Stream("t", 1_000, b"t" * 16, b"s" * 8, received, sent if server else None, "e", "r", "clock")
    return judge(Evidence([stream], engine=RECORDS if engine else None, **evidence), THRESHOLDS)


def rows(*judgements: Judgement) -> pa.Table:
    """Return the rows of these judgements."""
    return verdict_rows(Judgements.of(judgements), JUDGED_AT_NS)


def test_a_row_has_the_verdict_and_what_it_rests_on() -> None:
    """An aligned stall. The front end has 1 ms, which is less than the error of the clock's offset, so it is excluded."""
    (row,) = rows(judgement()).to_pylist()
    assert (row["tenant"], row["trace_id"], row["span_id"], row["engine_id"]) == ("t", b"t" * 16, b"s" * 8, "e")
    assert (row["gap_start_us"], row["gap_us"], row["cause"], row["confidence"]) == (601_999, 320_000, "host", "likely")
    assert sum(dict(row["parts"]).values()) == 320_000_000 and dict(row["parts"]).keys() == {"base", "host", "front_end"}
    assert row["excess_us"] == pytest.approx(300_000, abs=2) and row["share"] == pytest.approx(299 / 300, abs=1e-3)
    assert (row["step_first"], row["step_last"], row["culprit_step"], row["missing"]) == (30, 30, 30, [])
    assert row["culprit_at"].value == round(1e6 * ENDS[30]) and row["culprit_us"] == pytest.approx(300_000, abs=2)
    assert dict(row["evidence"]) == {"server_gap_us": 320_000, "record_late_us": 0}
    assert dict(row["excluded"]).keys() == {"scheduling", "kv_pressure", "front_end", "coalescing", "connection", "slow_reader"}
    assert row["judged_at"].timestamp() == pytest.approx(JUDGED_AT_NS / 1e9, abs=1e-3)


@pytest.mark.parametrize(
    ("server", "engine", "missing", "confidence"),
    [
        (True, False, ["engine"], "likely"),
        (False, True, ["server"], "likely"),
        (False, False, ["server", "engine"], "likely"),
    ],
)
def test_missing_vantages_are_listed(server: bool, engine: bool, missing: list[str], confidence: str) -> None:
    """The steps are null without an engine."""
    (row,) = rows(judgement(server=server, engine=engine)).to_pylist()
    assert row["missing"] == missing and row["confidence"] == confidence
    assert (row["step_first"] is None) == (row["culprit_step"] is None) == (not engine)


def test_a_withdrawn_stall_is_a_healthy_step() -> None:
    """Its excess is below the threshold, and the store has it as a stall."""
    stored = frozenset((("t", b"t" * 16, b"s" * 8, 601_999),))
    found = judgement(stored_stalls=stored)
    high = judge(Evidence(found.streams, stored_stalls=stored), Thresholds(100.0, 900.0))
    (row,) = rows(high).to_pylist()
    assert row["cause"] == "base" and not counterfactual_rows([high], 100, JUDGED_AT_NS).num_rows


def test_without_stalls_there_are_no_rows() -> None:
    """The empty table has the same types, so tables of several groups can be concatenated."""
    nothing = judge(Evidence(judgement().streams), Thresholds(100.0, 900.0))
    empty, full = rows(nothing), rows(judgement())
    assert empty.num_rows == 0 and empty.schema == full.schema


def test_a_server_without_a_client_is_judged_by_its_own_gaps() -> None:
    """The same parts as with a client, but nothing is said about the delivery: no cause of it is excluded, and none has time."""
    with_client = judgement()
    (stream,) = with_client.streams
    assert stream.server is not None
    alone = judge(Evidence([replace(stream, judged=stream.server, vantage="server")], engine=RECORDS), THRESHOLDS)
    (seen,), (row,) = (rows(each).to_pylist() for each in (with_client, alone))
    assert (row["vantage"], row["missing"], row["confidence"]) == ("server", ["client"], "likely")
    assert (row["cause"], row["parts"], row["step_first"]) == (seen["cause"], seen["parts"], seen["step_first"])
    assert row["gap_start_us"] == seen["gap_start_us"] - 1_000
    assert dict(row["excluded"]).keys() == {"scheduling", "kv_pressure", "front_end"}
    assert not {"hold_us", "buffered", "unread"} & dict(row["evidence"]).keys()


def test_the_stalls_of_a_server_are_withdrawn_as_healthy() -> None:
    """The rows have the keys of the stalls, and the whole gap counts as healthy."""
    (row,) = rows(judgement()).to_pylist()
    key = ("tenant", "trace_id", "span_id", "gap_start_us")
    stalls = pa.table({name: [row[name]] for name in (*key, "gap_us", "engine_id", "vantage")} | {"start_ns": [1_000]})
    (withdrawn,) = withdrawn_rows(stalls, JUDGED_AT_NS).to_pylist()
    assert all(withdrawn[name] == row[name] for name in (*key, "start_time", "gap_us", "judged_at"))
    assert (withdrawn["cause"], withdrawn["vantage"], withdrawn["excess_us"]) == ("base", row["vantage"], 0)
    assert dict(withdrawn["parts"]) == {"base": 320_000_000} and withdrawn["step_first"] is None
