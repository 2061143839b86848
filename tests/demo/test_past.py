"""The demo's past consists of recorded streams with their times, under other names."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from demo.past import Placement, bodies, placements
from demo.recording import two_sided_streams
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans

NOW_NS = time.time_ns()
HOUR_NS = 3_600_000_000_000


def _rows(*made: Placement) -> list[dict[str, Any]]:
    out = []
    for body, _ in bodies(made):
        batch = convert_spans(ExportTraceServiceRequest.FromString(body), tenant="", now_ns=NOW_NS, limits=Limits(retention_days=0))
        assert not batch.rejected.num_rows
        out += batch.revs.to_pylist()
    return out


def test_a_past_stream_has_the_recorded_times() -> None:
    """Every chunk has its recorded time at both vantages, relative to the start of the placement."""
    placed = Placement("kv", NOW_NS - HOUR_NS, "shop", "1", "m", "p", engine_id="e")
    rows = {(str(row["response_id"]).removeprefix("chatcmpl-past-0-"), row["vantage"]): row for row in _rows(placed)}
    assert len(rows) == 2 * len(two_sided_streams("kv"))
    for stream in two_sided_streams("kv"):
        for vantage, side in (("client", stream.client), ("server", stream.server)):
            row = rows[stream.key, vantage]
            assert np.cumsum(np.array(row["dt_us"])).tolist() == list(side.times_us)
            assert row["ttfb_us"] == side.head_us and row["outcome"] == stream.outcome and row["output_tokens"]


def test_pairs_combine_two_tokens_per_chunk() -> None:
    """The tokens are the same in half as many chunks, and each chunk has the time of its later token."""
    single, paired = (_rows(Placement("calm", NOW_NS, "s", "1", "m", "p", warm=True, share=40, pairs=pairs)) for pairs in (False, True))
    assert len(single) == len(paired) == 2
    for one, two in zip(single, paired, strict=True):
        assert sum(two["chunk_tokens"]) == sum(one["chunk_tokens"]) == two["output_tokens"]
        assert 0.9 < two["multi_token_share"] <= 1 and one["multi_token_share"] == 0
        assert set(np.cumsum(two["dt_us"])) < set(np.cumsum(one["dt_us"]))


@pytest.mark.parametrize("incident", ["", "kv"])
def test_the_past_ends_now_and_has_an_incident(incident: str) -> None:
    """Placements are in order of time and none is after now. The KV recording is two hours old, or its last run lasts until now."""
    made = placements(NOW_NS, incident)
    begins = [each.begin_ns for each in made]
    assert begins == sorted(begins) and begins[-1] < NOW_NS
    last = max(each.begin_ns for each in made if each.name == "kv")
    assert (NOW_NS - last < 4 * 60 * 10**9) == (incident == "kv")
    releases = {each.release for each in made if each.service == "shop"}
    assert releases == {"1.4.2", "1.5.0"} and all(each.release == "1.5.0" for each in made if each.name == "kv")
