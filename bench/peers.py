"""Legato's SDK beside other instrumentations of the `openai` client: what each adds to a chunk, sends, knows and loses.

    python bench/peers.py [--rounds 3] [--chunks 1000] [--only legato --only openlit]

A server on the last core sends 20 concurrent streams of 50 chunks a second each to an application with the asynchronous client;
each content is the time of its send. Each contestant runs in a separate environment, made once with the packages of tests/captures, in
its default configuration, beside the bare client of the same environment, alternating. The latency of a chunk lasts from its send
to the application's loop; streams begin and end together. Then streams of 40 chunks with a stall of 725 ms; streams that the application
leaves after 12 chunks; and an application that is killed while streams run. What a contestant knows is what `legato serve` finds in its
spans. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, median  # noqa: E402
from bench.peer_runs.figures import (  # noqa: E402
    Accuracy,
    Kept,
    Latency,
    accuracy,
    kept,
    latency,
    middle,
    outcomes,
    rows_of,
    wire_bytes,
)  # fmt: skip
from captures.catalogue import EMITTERS  # noqa: E402
from captures.environments import made  # noqa: E402
from captures.sink import Received, Sink  # noqa: E402

HERE = pathlib.Path(__file__).parent / "peer_runs"
STREAMS = 20
KILL_AFTER_S = 14.0
TIMEOUT_S = 180
# Contestant: the emitter of tests/captures with its packages; Legato has the environment of this bench.
CONTESTANTS = {
    "legato": "",
    "openllmetry": "python-openllmetry-openai",
    "openinference": "python-openinference-openai",
    "openlit": "python-openlit",
    "langfuse": "python-langfuse",
    "logfire": "python-logfire",
    "genai": "python-otel-genai-openai",
}


@dataclass
class Site:
    """Where contestants run: the server's address, the receiver, the cache of environments, and the cores of the application."""

    url: str
    sink: Sink
    cache: pathlib.Path
    cores: str

    def python(self, contestant: str) -> str:
        """Return the interpreter of a contestant."""
        emitter = CONTESTANTS[contestant]
        return made(EMITTERS[emitter], self.cache / emitter).program[0] if emitter else sys.executable


@dataclass(frozen=True)
class Run:
    """The application's output (empty if it was killed), and what it sent after its warm-up."""

    output: dict[str, Any]
    received: list[Received]


@contextmanager
def site(cache: pathlib.Path) -> Iterator[Site]:
    """Start the server and the receiver on the last core. The application may use all."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    sink = Sink()
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    server = subprocess.Popen([sys.executable, HERE / "server.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield Site(f"http://127.0.0.1:{int(server.stdout.readline())}", sink, cache, ",".join(map(str, cores)))
    finally:
        server.kill()
        server.wait()
        sink.shutdown()


def environ(where: Site) -> dict[str, str]:
    """Return the variables of an application: both addresses, Legato's packages, no product telemetry."""
    closed = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost", "TRACELOOP_TELEMETRY": "false", "DO_NOT_TRACK": "1"}
    keys = {"OPENAI_API_KEY": "none", "LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1"}
    addresses = {
        "OPENAI_BASE_URL": f"{where.url}/v1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": where.sink.url,
        "LANGFUSE_HOST": where.sink.url,
        "LANGFUSE_BASE_URL": where.sink.url,
    }
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "sdk"), **closed, **keys, **addresses}


def run(where: Site, contestant: str, environment: str, scenario: str, model: str, kill_after_s: float = 0) -> Run:
    """Run the application once. Raises ``SystemExit`` if it fails."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as errors:
        application = [str(HERE / "application.py"), contestant, scenario, str(STREAMS), model]
        command = ["taskset", "-c", where.cores, where.python(environment), *application]
        variables = {**environ(where), "HOME": home}
        process = subprocess.Popen(
            command, env=variables, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            is_ready = process.stdout.readline().strip() == "ready"
            before = len(where.sink.received)
            if is_ready and kill_after_s:
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
                time.sleep(kill_after_s)
                process.send_signal(signal.SIGKILL)
            printed, _ = process.communicate("\n", timeout=TIMEOUT_S) if is_ready and not kill_after_s else ("{}", None)
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
        if not is_ready or (process.returncode and not kill_after_s):
            errors.seek(0)
            raise SystemExit(f"{contestant} {scenario} in the environment of {environment}: {errors.read()[-2000:]}")
    time.sleep(0.3)
    return Run(json.loads(printed.strip().splitlines()[-1]), where.sink.received[before:])


@dataclass
class Result:
    """All figures of a contestant; ``bare`` has those of the bare client in the same environment, run by run."""

    latencies: list[Latency]
    bare: list[Latency]
    bytes_long: float = 0
    bytes_short: float = 0
    accuracy: Accuracy | None = None
    left: str = ""
    killed: Kept | None = None

    def summary(self) -> dict[str, Any]:
        """Return the contestant's entry of the last line."""
        own, bare = middle(self.latencies), middle(self.bare)
        pairs = list(zip(self.latencies, self.bare, strict=True))
        assert self.accuracy and self.killed
        return {
            "p50_us": own.p50_us,
            "p99_us": own.p99_us,
            "p999_us": own.p999_us,
            "bare_p999_us": bare.p999_us,
            "added_p50_us": round(median([a.p50_us - b.p50_us for a, b in pairs]), 1),
            "added_p99_us": round(median([a.p99_us - b.p99_us for a, b in pairs]), 1),
            "ratio_p999": round(median([a.p999_us / b.p999_us for a, b in pairs]), 2),
            "added_cpu_us": round(median([a.cpu_us - b.cpu_us for a, b in pairs]), 1),
            "bytes_per_chunk_long": round(self.bytes_long, 1),
            "bytes_per_chunk_short": round(self.bytes_short, 1),
            **asdict(self.accuracy),
            "left": self.left,
            "killed_ended": self.killed.ended,
            "killed_running": self.killed.running,
            "killed_chunk_share": round(self.killed.chunk_share, 2),
        }


def measure(where: Site, contestant: str, result: Result, chunks: int) -> None:
    """One round of a contestant and the bare client, in an order that alternates."""
    pair = [(contestant, result.latencies), ("bare", result.bare)]
    for name, latencies in pair if len(result.bare) % 2 else reversed(pair):
        done = run(where, name, contestant, "read", f"bench:{chunks}:20")
        latencies.append(latency(done.output))
        if name == contestant:
            result.bytes_long = wire_bytes(done.received) / (STREAMS * chunks)


def examine(where: Site, contestant: str, result: Result) -> None:
    """Short streams with a stall, streams that are left, and a killed application."""
    short = run(where, contestant, contestant, "read", "bench:40:25:725")
    result.bytes_short = wire_bytes(short.received) / (STREAMS * 40)
    result.accuracy = accuracy(rows_of(short.received), short.output["streams"])
    result.left = outcomes(rows_of(run(where, contestant, contestant, "break", "bench:200:20").received), STREAMS)
    killed = run(where, contestant, contestant, "kill", "", KILL_AFTER_S)
    result.killed = kept(rows_of(killed.received), STREAMS, round(KILL_AFTER_S / 0.02))


def table(summaries: dict[str, dict[str, Any]]) -> None:
    """Print what the JSON line has."""
    print("                   p50     p99   p99.9    bare  ratio    CPU  bytes/chunk   TTFT ±   gap ±  lost")
    for name, each in summaries.items():
        times = " ".join(f"{each[key]:7.0f}" for key in ("p50_us", "p99_us", "p999_us", "bare_p999_us"))
        errors = " ".join("       –" if each[key] is None else f"{each[key]:8.1f}" for key in ("ttft_error_ms", "gap_error_ms"))
        sizes = f"{each['bytes_per_chunk_long']:.0f}, {each['bytes_per_chunk_short']:.0f}"
        print(
            f"{name:14} {times} {each['ratio_p999']:6.2f} {each['added_cpu_us']:+6.0f} {sizes:>12} {errors}  left: {each['left']}; "
            f"killed: {each['killed_ended']} of {STREAMS} ended, {each['killed_running']} of {STREAMS} running "
            f"with {each['killed_chunk_share']:.0%} of their chunks"
        )


def main() -> None:
    """Run all rounds and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--chunks", type=int, default=1000, help="of a long stream, at 50 a second")
    options.add_argument("--only", action="append", choices=CONTESTANTS, help="a contestant; may be repeated")
    options.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "legato-captures")
    given = options.parse_args()
    results = {name: Result([], []) for name in given.only or CONTESTANTS}
    with site(given.cache) as where:
        for number in range(given.rounds):
            for name, result in results.items():
                print(f"round {number + 1} of {given.rounds}: {name}", file=sys.stderr, flush=True)
                measure(where, name, result, given.chunks)
        for name, result in results.items():
            print(f"errors and losses: {name}", file=sys.stderr, flush=True)
            examine(where, name, result)
    summaries = {name: result.summary() for name, result in results.items()}
    print(describe("openai", "opentelemetry-sdk"))
    print(
        f"µs from send to the application's loop, medians of {given.rounds} rounds of {STREAMS} streams of {given.chunks} chunks, 50/s each"
    )
    table(summaries)
    print(json.dumps({"n_rounds": given.rounds, "n_chunks": STREAMS * given.chunks, **summaries}))


if __name__ == "__main__":
    main()
