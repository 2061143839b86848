"""TensorRT-LLM's two JSON endpoints: rows, the servers that return them with the collectors that read them, and the collectors' results.

The rows of /perf_metrics are not recorded: they are written after the published source, `get_perf_metrics` in NVIDIA/TensorRT-LLM's
`tensorrt_llm/serve/openai_server.py` at 0005772, and for disaggregated serving `tensorrt_llm/serve/perf_metrics.py` at 07fe631.
"""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from helpers.platform.engine_sources import PolledEngine
from legato_gpu_agent.collectors.measurement import Distribution, Measured, Measurement
from legato_gpu_agent.collectors.trtllm_iterations import Iterations
from legato_gpu_agent.collectors.trtllm_requests import PerfMetrics
from legato_gpu_agent.engines.signals import SIGNALS
from legato_gpu_agent.plugin.model import FinishedRequest, Step

__all__ = [
    "ITERATION_ROWS",
    "REQUEST_ROWS",
    "RESPONSES",
    "IterationsEngine",
    "RequestsEngine",
    "disaggregated_row",
    "iteration_counts",
    "iteration_row",
    "iteration_signals",
    "request_counts",
    "request_histograms",
    "request_row",
    "request_with_times",
]

RESPONSES = pathlib.Path(__file__).parents[2] / "gpu_agent" / "data" / "responses"
ITERATION_ROWS = json.loads((RESPONSES / "tensorrt_llm_iterations.json").read_text(encoding="utf-8"))
REQUEST_ROWS = json.loads((RESPONSES / "tensorrt_llm_perf_metrics.json").read_text(encoding="utf-8"))
_OUTCOMES = {"taken", "late", "other", "bad", "dropped"}


def iteration_row(number: int, **changed: Any) -> dict[str, Any]:
    """Return an iteration; ``Ellipsis`` removes a field."""
    out = {**copy.deepcopy(ITERATION_ROWS[0]), "iter": number, **changed}
    return {key: value for key, value in out.items() if value is not ...}


class IterationsEngine(PolledEngine):
    """TensorRT-LLM's /metrics."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.collector: Iterations = Iterations(url, "e", self.emitted.append)

    @property
    def steps(self) -> list[Step]:
        """Return the emitted steps."""
        return [each.step for each in self.emitted if each.step is not None]


def iteration_counts(found: Sequence[Measured]) -> dict[str, float]:
    """Return rows by outcome, without outcomes of 0."""
    own = [each for each in found if isinstance(each, Measurement) and each.metric == "legato.agent.iterations"]
    named = {dict(each.attributes)["legato.outcome"]: each.value for each in own}
    assert set(named) == {"taken", "late", "missing", "other", "bad"}
    return {what: count for what, count in named.items() if count}


def iteration_signals(found: Sequence[Measured]) -> dict[str, float]:
    """Return the measurements of the engine by name; each has its unit, and counters have a start."""
    out = {}
    for each in found:
        if each.metric.startswith("legato.engine."):
            assert isinstance(each, Measurement)
            assert dict(each.attributes) == {"legato.engine.id": "e", "legato.engine.kind": "tensorrt_llm"}
            known = SIGNALS.get(each.metric)
            assert known is None or (each.unit, bool(each.start_ns)) == (known.unit, known.kind == "counter")
            out[each.metric.removeprefix("legato.engine.")] = each.value
    return out


def request_row(number: object = 7, **changed: Any) -> dict[str, Any]:
    """Return a request; ``Ellipsis`` removes a field."""
    out = {**copy.deepcopy(REQUEST_ROWS[0]), "request_id": number, **changed}
    return {key: value for key, value in out.items() if value is not ...}


def request_with_times(number: int = 7, **times: object) -> dict[str, Any]:
    """Return a request with these times; ``Ellipsis`` removes one."""
    out = request_row(number)
    known = {**out["perf_metrics"]["timing_metrics"], **times}
    out["perf_metrics"]["timing_metrics"] = {key: value for key, value in known.items() if value is not ...}
    return out


def disaggregated_row(number: int = 7) -> dict[str, Any]:
    """Return a row of the server in front of disaggregated_row ones, with the values of both."""
    return {
        "ctx_server": "10.0.0.1:8001",
        "gen_server": "10.0.0.2:8002",
        "disagg_server_arrival_time": 61204.1,
        "disagg_server_first_token_time": 61204.2,
        "ctx_perf_metrics": request_row(number, ctx_request_id=number),
        "gen_perf_metrics": request_row(number, ctx_request_id=number),
    }


class RequestsEngine(PolledEngine):
    """TensorRT-LLM's /perf_metrics, and its /metrics with iterations at the second request."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.epoch_ns = 77
        self.collector: PerfMetrics = PerfMetrics(url, "e", self.emitted.append, epoch_ns=lambda: self.epoch_ns)

    def answer(self, path: str) -> bytes | int:
        """Return the server's response."""
        if path != "/metrics":
            return super().answer(path)
        self.paths.append(path)
        return json.dumps(ITERATION_ROWS).encode() if self.paths.count(path) == 2 else b"[]"

    @property
    def requests(self) -> list[FinishedRequest]:
        """Return the emitted requests."""
        return [request for each in self.emitted for request in each.finished]

    @property
    def ids(self) -> list[str]:
        """Return their ids."""
        return [request.response_id for request in self.requests]


def request_counts(found: Sequence[Measured]) -> dict[str, float]:
    """Return rows by outcome, without outcomes of 0."""
    own = [each for each in found if isinstance(each, Measurement)]
    assert all(each.metric == "legato.agent.perf_metrics" and each.unit == "{request}" and each.start_ns for each in own)
    assert all(dict(each.attributes)["legato.engine.id"] == "e" for each in own)
    named = {dict(each.attributes)["legato.outcome"]: each.value for each in own}
    assert set(named) == _OUTCOMES
    return {what: count for what, count in named.items() if count}


def request_histograms(found: Sequence[Measured]) -> dict[str, Distribution]:
    """Return the durations of this round's requests by name; each has its unit."""
    out = {}
    for each in found:
        if isinstance(each, Distribution):
            assert dict(each.attributes) == {"legato.engine.id": "e", "legato.engine.kind": "tensorrt_llm"}
            assert (each.unit, "histogram") == (SIGNALS[each.metric].unit, SIGNALS[each.metric].kind)
            assert len(each.counts) == len(each.bounds) + 1 and any(each.counts) and list(each.bounds) == sorted(each.bounds)
            out[each.metric.removeprefix("legato.engine.")] = each
    return out
