"""The cost of the agent and its plugin: for the engine per step, and for the machine.

    python bench/agent.py [--steps 6000] [--seconds 30]

`step_record_us`: one call of the stat logger's `record()` with statistics like vLLM's (16 requests, iteration details, a finished request
in every fortieth step), sent to a real `legato-gpu-agent` that sends to a real `legato serve`. The median over calls in bursts of six, with
a poll of the agent between two bursts. `step_record_paced_us`: the median of single calls with 5 ms of other Python code between them, so
with cold caches as in an engine. `step_core_share`: the agent's share of one core at 40 steps per second. `core_share_1hz`,
`core_share_10hz`: its share while it reads a vLLM metrics endpoint of 51 KB, a GPU and the host once, and ten times, per second. The script
fails if a record is dropped or lost. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.agent_load.metrics_endpoint import core_share, processor_s  # noqa: E402
from bench.attribution import rows  # noqa: E402
from bench.common.machine import describe, quantile  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402
from legato_gpu_agent.plugin.recorder import StepRecorder  # noqa: E402

BURST, BURST_PAUSE_S = 6, 0.025
PACE_S = 0.005
STEPS_HZ = 40


@dataclass
class Details:
    """Like vLLM's `SchedulerIterationDetails`."""

    iteration_index: int = 0
    num_ctx_requests: int = 0
    num_ctx_tokens: int = 0
    num_generation_requests: int = 16
    num_generation_tokens: int = 16
    elapsed_ms: float = 24.7
    is_dummy: bool = False


@dataclass
class SchedulerStats:
    """Like vLLM's class of this name."""

    num_running_reqs: int = 16
    num_waiting_reqs: int = 1
    num_skipped_waiting_reqs: int = 0
    num_kv_fetch_reqs_by_stage: dict[str, int] = field(default_factory=dict)
    step_counter: int = 0
    kv_cache_usage: float = 0.4231
    iteration_details: Details | None = field(default_factory=Details)
    spec_decoding_stats: Any = None


class IterationStats:
    """Like vLLM's class of this name."""

    def __init__(self, number: int) -> None:
        self.iteration_timestamp = time.time()
        self.num_generation_tokens = 16
        self.num_preempted_reqs = 0
        self.inter_token_latencies_iter = [0.0251 + each * 1e-7 for each in range(16)]
        self.time_to_first_tokens_iter: list[float] = []
        self.finished_requests = [self._finished(number)] if number % 40 == 0 else []

    @staticmethod
    def _finished(number: int) -> SimpleNamespace:
        times = {"queued_time": 0.001, "prefill_time": 0.2, "decode_time": 9.1}
        counts = {"num_preemptions": 0, "num_prompt_tokens": 60, "num_generation_tokens": 390}
        return SimpleNamespace(request_id=f"chatcmpl-{number:032x}", finish_reason="length", **counts, **times)


@contextmanager
def agent(path: pathlib.Path, served: Served) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command; yield it when it listens."""
    environ = {**os.environ, "LEGATO_ENGINE_PIPE": str(path), "LEGATO_ENDPOINT": served.otlp}
    with subprocess.Popen([sys.executable, "-m", "legato_gpu_agent"], env=environ, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 30
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the agent did not start")
            time.sleep(0.05)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def timed(recorder: StepRecorder, number: int) -> float:
    """Return the duration of one call in µs."""
    scheduler, iteration = SchedulerStats(), IterationStats(number)
    started = time.perf_counter_ns()
    recorder.record(scheduler, iteration)
    return (time.perf_counter_ns() - started) / 1000


def in_bursts(recorder: StepRecorder, steps: int) -> list[float]:
    """Make calls in bursts, with a pause in which the agent polls; return their durations in µs."""
    found = []
    for number in range(1, steps + 1):
        found.append(timed(recorder, number))
        if number % BURST == 0:
            time.sleep(BURST_PAUSE_S)
    return found


def paced(recorder: StepRecorder, steps: int) -> list[float]:
    """Make single calls with other work between them; return their durations in µs."""
    found = []
    for number in range(1, steps + 1):
        until = time.perf_counter() + PACE_S
        while time.perf_counter() < until:
            json.loads(json.dumps([{"index": each, "text": "some text"} for each in range(50)]))
        found.append(timed(recorder, number))
    return found


def step_core_share(recorder: StepRecorder, process: subprocess.Popen[bytes], seconds: float) -> float:
    """Return the agent's CPU time divided by wall time, while an engine steps."""
    before, started, number = processor_s(process.pid), time.monotonic(), 0
    while time.monotonic() < started + seconds:
        number += 1
        timed(recorder, number)
        time.sleep(max(started + number / STEPS_HZ - time.monotonic(), 0))
    return (processor_s(process.pid) - before) / (time.monotonic() - started)


def await_rows(served: Served, steps: int) -> None:
    """Wait until every step is stored as one row."""
    until = time.monotonic() + 30
    while (count := int(rows(served, "SELECT count() AS n FROM engine_steps")[0]["n"])) != steps:
        if time.monotonic() > until:
            raise SystemExit(f"{count} of {steps} steps are in the store")
        time.sleep(0.2)


def main() -> None:
    """Run the bench and print the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=6_000, help="number of calls in bursts; a third of it single calls")
    options.add_argument("--seconds", type=float, default=30.0, help="duration of each measurement of the share")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, serve_process(pathlib.Path(folder) / "store") as served:
        path = pathlib.Path(folder) / "s"
        with agent(path, served) as process:
            recorder = StepRecorder(environ={"LEGATO_ENGINE_PIPE": str(path), "LEGATO_ENGINE_ID": "bench"}, arguments=[])
            in_bursts(recorder, 60)
            bursts, single = in_bursts(recorder, given.steps), paced(recorder, given.steps // 3)
            core = step_core_share(recorder, process, given.seconds)
            while not recorder.flush():
                time.sleep(0.05)
            await_rows(served, recorder.number)
        shares = {hz: core_share(pathlib.Path(folder), served, 1000 // hz, given.seconds) for hz in (1, 10)}
        sampled = int(rows(served, "SELECT count() AS n FROM node_samples WHERE engine_id = 'bench-page'")[0]["n"])
    if recorder.writer.dropped:
        raise SystemExit(f"{recorder.writer.dropped} datagrams were dropped")
    print(describe("numpy", "protobuf"))
    for name, calls in (("in bursts", bursts), ("paced", single)):
        print(
            f"{len(calls):,} calls {name}: " + ", ".join(f"p{100 * share:g} {quantile(calls, share):.2f} µs" for share in (0.5, 0.9, 0.99))
        )
    results = {
        "step_record_us": round(quantile(bursts, 0.5), 2),
        "step_record_paced_us": round(quantile(single, 0.5), 2),
        "step_core_share": round(core, 4),
        **{f"core_share_{hz}hz": round(share, 4) for hz, (share, _) in shares.items()},
        **{f"n_pages_{hz}hz": count for hz, (_, count) in shares.items()},
        "n_samples": sampled,
        "n_calls": len(bursts),
        "n_paced": len(single),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
