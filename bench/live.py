"""Compare Legato on a real vLLM with vLLM's own records. Opt-in: needs an environment with vLLM (bench/README.md, "live").

    make live VLLM=ENV [ARGS="--pressure FOLDER --chat FOLDER --seconds 50 --overhead 2"]

``--pressure``: folder of a small model, run with random weights and a KV cache that is too small. ``--chat``: a model with real weights.
Both run with the stat logger, the scheduler hook, the middleware, `legato-gpu-agent`, `legato serve` and `openai` clients with the SDK.
The hook writes into a pipe of this bench, never to the agent; its records are the truth for the verdicts. A stall that is mostly its
request's preemption, or recompute of other requests, should be `kv_pressure`; one that is mostly prefill of other requests, `scheduling`;
one that is mostly a late event loop of the clients, `consumer`; other stalls are not scored. ``agreed`` counts the engine's causes.
vLLM's histogram of times between tokens is compared with the gaps between the server's content chunks. ``--overhead N``: N runs each with
and without Legato's plugins and middleware, alternating. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import httpx  # noqa: E402

import legato  # noqa: E402
from bench.attribution import rows  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from bench.live_vllm.engine import (  # noqa: E402
    BOUNDS_S,
    ENGINE_CORES,
    FINE_BOUNDS_S,
    OTHER_CORES,
    Histogram,
    agent,
    engine,
    histogram_of,
    truth,
)
from bench.live_vllm.load import CHAT, PRESSURE, STEADY, Load, run  # noqa: E402
from helpers.servers.ports import free_port  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402
from legato_gpu_agent.plugin.model import SchedulerEvent  # noqa: E402

CONTENT = (1, 2, 3)
# A prompt of fewer tokens is no long prefill; and a cause is expected where it fills this share of the stall.
LONG_TOKENS, MOST = 64, 0.5
SHARES = (0.5, 0.9, 0.99)
PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs share."""

    venv: pathlib.Path
    seconds: float
    folder: pathlib.Path
    served: Served

    def environ(self, name: str) -> dict[str, str]:
        """Of vLLM and the agent."""
        return {
            "LEGATO_ENDPOINT": self.served.otlp,
            "LEGATO_ENGINE_PIPE": str(self.folder / "engine.pipe"),
            "LEGATO_SCHEDULER_HOOK": str(self.folder / f"{name}.pipe"),
            "OTEL_SERVICE_NAME": name,
        }


def judged(setup: Setup, load: Load, model: pathlib.Path) -> dict[str, Any]:
    """One load on one model, everything on: what Legato says beside what vLLM knows."""
    name = load.name
    options, environ = [str(model), "--served-model-name", "live", *load.engine], setup.environ(name)
    with truth(pathlib.Path(environ["LEGATO_SCHEDULER_HOOK"]), setup.folder / f"{name}.truth.jsonl") as events:
        with engine(setup.venv, options, free_port(), environ, setup.folder / f"{name}.vllm.log") as vllm:
            url = vllm.url
            legato.instrument_openai()
            late = run(url, load, setup.seconds, name)
            legato.uninstrument_openai()
            legato.flush()
            own_histogram = histogram_of(httpx.get(f"{url}/metrics", timeout=30).text)
    await_verdicts(setup.served)
    steps = rows(setup.served, f"SELECT count() AS n, uniqExact(step) AS numbers, max(step) AS last FROM engine_steps WHERE {of(url)}")[0]
    streams = rows(
        setup.served,
        "SELECT countIf(vantage = 'client') AS client, countIf(vantage = 'server') AS server, uniqExact(engine_id) AS engines,"
        f" countIf(vantage = 'server' AND {of(url)}) AS same_engine, countIf(outcome != 'complete') AS incomplete"
        f" FROM streams WHERE response_id LIKE 'chatcmpl-{name}-%'",
    )[0]
    return {
        "steps": {key: int(value) for key, value in steps.items()},
        "streams": {key: int(value) for key, value in streams.items()},
        "client_late_s": round(sum(over - began for began, over in late) / 1e9, 1),
        **against_truth(setup.served, name, events, late),
        **against_histogram(setup.served, name, own_histogram),
    }


def of(url: str) -> str:
    """The engine by the id that plugin and middleware choose where none is set."""
    return f"engine_id = '{url.removeprefix('http://')}'"


def await_verdicts(served: Served) -> None:
    """Until the worker has gone over all that was received."""
    until = time.monotonic() + PATIENCE_S
    time.sleep(4)
    received = int(rows(served, "SELECT toUnixTimestamp64Milli(max(received_at)) AS t FROM stream_revs")[0]["t"])
    while int(rows(served, "SELECT toUnixTimestamp64Milli(max(until)) AS t FROM attribution_runs")[0]["t"]) < received:
        if time.monotonic() > until:
            raise SystemExit(f"the worker did not judge within {PATIENCE_S} s")
        time.sleep(0.5)


def against_truth(served: Served, name: str, events: Sequence[SchedulerEvent], late: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Each verdict beside what the scheduler did and the clients' loop did not: pairs of expected and said, and how many agree."""
    verdicts = rows(
        served,
        "SELECT s.response_id AS id, v.cause AS cause, toUnixTimestamp64Nano(v.start_time) + 1000 * v.gap_start_us AS start,"
        " 1000 * v.gap_us AS gap FROM verdicts AS v FINAL INNER JOIN streams AS s ON s.trace_id = v.trace_id AND s.span_id = v.span_id"
        f" WHERE s.response_id LIKE 'chatcmpl-{name}-%'",
    )
    said: collections.Counter[str] = collections.Counter()
    for verdict in verdicts:
        start = int(verdict["start"])
        expected = expected_of(str(verdict["id"]), start, start + int(verdict["gap"]), events, late)
        said[f"{expected or 'not judged'}: {verdict['cause']}"] += 1
    judged = {pair: n for pair, n in said.items() if pair.startswith(("scheduling", "kv_pressure"))}
    agreed = sum(n for pair, n in judged.items() if pair.split(": ")[0] == pair.split(": ")[1])
    kinds = collections.Counter(event.kind for event in events)
    return {"truth": dict(kinds), "verdicts": len(verdicts), "said": dict(said), "agreed": agreed, "judged": sum(judged.values())}


def expected_of(name: str, start: int, end: int, events: Sequence[SchedulerEvent], late: Sequence[tuple[int, int]]) -> str:
    """The cause that the truth makes of a gap, or nothing: what fills most of it."""
    away = sum(max(min(over, end) - max(began, start), 0) for began, over in preempted(name, events))
    held = sum(max(min(over, end) - max(began, start), 0) for began, over in late)
    prefill = recompute = 0.0
    for (began, over), tokens in work_of_others(name, start, end, events).items():
        if tokens.total() >= LONG_TOKENS:
            inside = min(over, end) - max(began, start)
            prefill += inside * tokens["prefill"] / tokens.total()
            recompute += inside * tokens["resume"] / tokens.total()
    if max(away, recompute, prefill, held) < MOST * (end - start):
        return ""
    if held > max(away, recompute, prefill):
        return "consumer"
    return "scheduling" if prefill > max(away, recompute) else "kv_pressure"


def preempted(name: str, events: Sequence[SchedulerEvent]) -> Iterator[tuple[int, int]]:
    """When the request was out of the batch: from its preemption to the end of the first step that recomputes it."""
    since = 0
    for event in events:
        if event.response_id == name and event.kind == "preempt":
            since = event.time_ns
        elif event.response_id == name and event.kind == "resume" and since:
            yield since, event.time_ns + 1000 * event.step_us
            since = 0


def work_of_others(name: str, start: int, end: int, events: Sequence[SchedulerEvent]) -> dict[tuple[int, int], collections.Counter[str]]:
    """Tokens that other requests had computed in the steps that touch a gap, by kind."""
    work: dict[tuple[int, int], collections.Counter[str]] = {}
    for event in events:
        step = (event.time_ns, event.time_ns + 1000 * event.step_us)
        if event.kind != "preempt" and event.response_id != name and step[0] < end and step[1] > start:
            work.setdefault(step, collections.Counter())[event.kind] += event.tokens
    return work


def against_histogram(served: Served, name: str, own_histogram: Histogram) -> dict[str, Any]:
    """vLLM's own times between tokens beside the gaps between the server's content chunks, and how many buckets lie between them."""
    gaps: list[float] = []
    for row in rows(served, f"SELECT dt_us, chunk_kind FROM streams WHERE vantage = 'server' AND response_id LIKE 'chatcmpl-{name}-%'"):
        times = [at for at, kind in zip(accumulate(row["dt_us"]), row["chunk_kind"], strict=True) if kind in CONTENT]
        gaps += [(after - before) / 1e6 for before, after in zip(times, times[1:], strict=False)]
    seen = Histogram.of(gaps)
    bounds = [*BOUNDS_S, float("inf")]
    print(f"\n{name}: times between tokens, up to ms: vLLM, Legato at the server")
    for bound, theirs, ours in zip(bounds, own_histogram.counts, seen.counts, strict=True):
        if theirs or ours:
            print(f"  {bound * 1000:10.1f}  {theirs:8,}  {ours:8,}")
    return {
        "itl_n": [own_histogram.n, seen.n],
        "itl_ms": {
            f"p{share * 100:g}": [round(1000 * bounds[each.bucket(share)], 1) for each in (own_histogram, seen)] for share in SHARES
        },
        "buckets_apart": {f"p{share * 100:g}": abs(own_histogram.bucket(share) - seen.bucket(share)) for share in SHARES},
    }


def overhead(setup: Setup, model: pathlib.Path, runs: int) -> dict[str, Any]:
    """The steady load with and without Legato in vLLM, alternating: the engine's own times between tokens, in ms, and the processor time
    of vLLM's server and of its other processes, in µs a token.
    """
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(2 * runs):
        # with, without, without, with, …: a drift of the machine is not one side's
        recorded, name = number % 4 in (0, 3), f"steady{number}"
        options, environ = [str(model), "--served-model-name", "live", *STEADY.engine], setup.environ(name) | {"LEGATO_SCHEDULER_HOOK": "0"}
        log = setup.folder / f"{name}.vllm.log"
        with engine(setup.venv, options, free_port(), environ, log, recorded=recorded, bounds_s=FINE_BOUNDS_S) as vllm:
            url = vllm.url
            run(url, STEADY, 5, f"{name}-warm")
            before, used = histogram_of(httpx.get(f"{url}/metrics", timeout=30).text), vllm.cpu_s()
            run(url, STEADY, setup.seconds, name)
            spent = [after - then for after, then in zip(vllm.cpu_s(), used, strict=True)]
            own_histogram = histogram_of(httpx.get(f"{url}/metrics", timeout=30).text).since(before)
        figures = {f"p{share * 100:g}": round(1000 * own_histogram.quantile_s(share, FINE_BOUNDS_S), 2) for share in (0.5, 0.99)}
        figures |= {"mean": round(1000 * own_histogram.sum_s / own_histogram.n, 2), "n": own_histogram.n}
        figures |= {name: round(1e6 * s / own_histogram.n, 1) for name, s in zip(("server_cpu_us", "engine_cpu_us"), spent, strict=True)}
        print(f"{'with' if recorded else 'without'} Legato: {figures}", flush=True)
        found[recorded].append(figures)
    return {"with": found[True], "without": found[False]}


@contextlib.contextmanager
def settled(venv: pathlib.Path, seconds: float, folder: pathlib.Path) -> Iterator[Setup]:
    """`legato serve` and the agent, for all runs."""
    settings = {"LEGATO_STALL_MS": "100", "LEGATO_ATTRIBUTE_EVERY_S": "1", "LEGATO_ATTRIBUTE_GRACE_S": "3"}
    with serve_process(folder / "store", **settings) as served:
        setup = Setup(venv, seconds, folder, served)
        with agent(setup.environ("agent"), folder / "agent.log"):
            legato.configure(served.otlp, service_name="live")
            yield setup


def versions(venv: pathlib.Path) -> str:
    """What the engine's environment has."""
    script = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('vllm', 'torch', 'protobuf')), sep=', ')"
    return subprocess.run([f"{venv}/bin/python", "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Run what was asked for, print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--vllm", type=pathlib.Path, required=True, metavar="ENV", help="a virtual environment with vLLM, legato and the agent's plugins"
    )
    options.add_argument("--pressure", type=pathlib.Path, metavar="FOLDER", help="a model, run with random weights")
    options.add_argument("--chat", type=pathlib.Path, metavar="FOLDER", help="a model with its weights")
    options.add_argument("--seconds", type=float, default=50.0, help="of each load")
    options.add_argument("--overhead", type=int, default=0, metavar="N", help="runs each with and without Legato, on --pressure's model")
    options.add_argument("--out", type=pathlib.Path, metavar="FOLDER", help="keeps truth and logs")
    given = options.parse_args()
    # Ended by a signal, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    loads: Mapping[str, tuple[Load, pathlib.Path | None]] = {"pressure": (PRESSURE, given.pressure), "chat": (CHAT, given.chat)}
    print(describe("openai", "chdb"), versions(given.vllm), sep="; ")
    os.sched_setaffinity(0, OTHER_CORES)
    print(f"vLLM on cores {sorted(ENGINE_CORES)}, all else on {sorted(OTHER_CORES)}")
    results: dict[str, Any] = {"seconds": given.seconds}
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.out or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with settled(given.vllm, given.seconds, folder) as setup:
            for name, (load, model) in loads.items():
                if model is not None:
                    results[name] = judged(setup, load, model)
                    print(json.dumps(results[name]), flush=True)
            if given.overhead and given.pressure:
                results["overhead"] = overhead(setup, given.pressure, given.overhead)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
