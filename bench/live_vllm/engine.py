"""A real vLLM under `bench/live.py`: starts it with or without Legato, keeps its scheduler's records as truth, and reads its histogram.

The scheduler's records use a pipe that no agent reads, so they cannot reach the store that is compared with them.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx

from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.plugin.model import SchedulerEvent
from legato_gpu_agent.plugin.protocol import decode

__all__ = ["BOUNDS_S", "ENGINE_CORES", "FINE_BOUNDS_S", "OTHER_CORES", "Histogram", "agent", "engine", "histogram_of", "truth"]

PATIENCE_S = 600
# The engine gets half of the cores, all else the others: clients and a store on the engine's cores would be measured as Legato's cost.
_CORES = sorted(os.sched_getaffinity(0))
ENGINE_CORES = set(_CORES[: max(1, len(_CORES) // 2)])
OTHER_CORES = set(_CORES) - ENGINE_CORES or ENGINE_CORES
# Fine enough to mean something, few enough to cost vLLM little: each a quarter wider than the one before.
BOUNDS_S = [round(0.005 * 1.25**n, 6) for n in range(38)]
# For figures by interpolation: 4 % wide where the steps are.
FINE_BOUNDS_S = [0.002, 0.004, *[round(0.006 * 1.04**n, 6) for n in range(60)], *[round(0.08 * 1.25**n, 6) for n in range(25)]]
_SERIES = re.compile(r"^vllm:inter_token_latency_seconds_(bucket|sum|count)\{([^}]*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts a bucket (the last is what is beyond all bounds), and the sum of all values."""

    counts: Sequence[int]
    sum_s: float

    @classmethod
    def of(cls, values_s: Sequence[float]) -> Histogram:
        """The histogram that vLLM would have made of these."""
        counts = [0] * (len(BOUNDS_S) + 1)
        for value in values_s:
            counts[bisect.bisect_left(BOUNDS_S, value)] += 1
        return cls(counts, sum(values_s))

    @property
    def n(self) -> int:
        """How many values."""
        return sum(self.counts)

    def since(self, before: Histogram) -> Histogram:
        """What has come since."""
        counts = [after - then for after, then in zip(self.counts, before.counts, strict=True)]
        return Histogram(counts, self.sum_s - before.sum_s)

    def quantile_s(self, share: float, bounds_s: Sequence[float]) -> float:
        """The quantile by interpolation in its bucket."""
        place = self.bucket(share)
        low, high = bounds_s[place - 1] if place else 0.0, bounds_s[min(place, len(bounds_s) - 1)]
        return low + (high - low) * (share * self.n - sum(self.counts[:place])) / self.counts[place]

    def bucket(self, share: float) -> int:
        """The bucket that holds the quantile."""
        rank, seen = share * self.n, 0
        for place, count in enumerate(self.counts):
            seen += count
            if seen >= rank and count:
                return place
        return len(self.counts) - 1


def histogram_of(page: str) -> Histogram:
    """vLLM's histogram of times between tokens, from its metrics page."""
    found = _SERIES.findall(page)
    cumulated = [int(float(value)) for kind, labels, value in found if kind == "bucket"]
    counts = [upper - lower for lower, upper in zip([0, *cumulated], cumulated, strict=False)]
    return Histogram(counts, sum(float(value) for kind, _, value in found if kind == "sum"))


@dataclass(frozen=True, slots=True)
class Running:
    """A vLLM that answers at ``url``; ``pid`` is its server's, and the session that all its processes are of."""

    url: str
    pid: int

    def cpu_s(self) -> tuple[float, float]:
        """Processor time so far of its server, and of all its other processes."""
        tick, server, others = os.sysconf("SC_CLK_TCK"), 0.0, 0.0
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[3]) == self.pid:
                    used = (int(fields[11]) + int(fields[12])) / tick
                    server, others = (server + used, others) if folder.name == str(self.pid) else (server, others + used)
        return server, others


@contextlib.contextmanager
def _process(
    command: Sequence[str], environ: Mapping[str, str], log: pathlib.Path, cores: set[int] = OTHER_CORES
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a separate process group, which is ended with all its descendants."""
    pinned = ["taskset", "-c", ",".join(map(str, sorted(cores))), *command]
    with log.open("wb") as output:
        child = subprocess.Popen(pinned, env=dict(environ), stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextlib.contextmanager
def engine(
    venv: pathlib.Path,
    options: Sequence[str],
    port: int,
    environ: Mapping[str, str],
    log: pathlib.Path,
    *,
    recorded: bool = True,
    bounds_s: Sequence[float] = BOUNDS_S,
) -> Iterator[Running]:
    """`vllm serve`, ready. ``recorded``: with Legato's plugins and middleware. ``bounds_s``: of its histogram."""
    command = [f"{venv}/bin/vllm", "serve", *options, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--custom-histogram-buckets", json.dumps({"inter_token_latency": bounds_s}), "--enable-logging-iteration-details"]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    variables = {**os.environ, **quiet, **(environ if recorded else {"VLLM_PLUGINS": "none"})}
    if recorded:
        command += ["--middleware", "legato.asgi.StreamMiddleware"]
    url = f"http://127.0.0.1:{port}"
    with _process(command, variables, log, ENGINE_CORES) as child:
        until = time.monotonic() + PATIENCE_S
        while True:
            if child.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"vLLM did not start; its last words:\n{log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            time.sleep(1)
        yield Running(url, child.pid)


@contextlib.contextmanager
def agent(environ: Mapping[str, str], log: pathlib.Path) -> Iterator[None]:
    """`legato-gpu-agent`, listening."""
    command = [sys.executable, "-m", "legato_gpu_agent"]
    with _process(command, {**os.environ, **environ}, log):
        until = time.monotonic() + 30
        while not pathlib.Path(environ["LEGATO_ENGINE_PIPE"]).exists():
            if time.monotonic() > until:
                raise SystemExit(f"the agent did not start; its last words:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield


@contextlib.contextmanager
def truth(path: pathlib.Path, file: pathlib.Path) -> Iterator[list[SchedulerEvent]]:
    """What the scheduler hook says into the pipe at ``path``: collected, and written to ``file`` a line each."""
    reader = PipeReader(path)
    events: list[SchedulerEvent] = []
    over = threading.Event()

    def hear() -> None:
        events.extend(event for each in reader.read() for event in decode(each).events)

    def collect() -> None:
        while not over.wait(0.05):
            hear()
        hear()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    try:
        yield events
    finally:
        over.set()
        thread.join()
        reader.close()
        fields = SchedulerEvent.__dataclass_fields__
        file.write_text("".join(json.dumps({name: getattr(event, name) for name in fields}) + "\n" for event in events), encoding="utf-8")
