"""The full pipeline SDK → Collector → ingest → store as real processes, while each is killed and the connections between them fail.

A trial is one kind of fault under load. The acknowledgements that an application received are in a ledger on disk that survives the
application, so at the end every acknowledged stream can be queried. The Collector is killed only when it is ready. `aim` kills it during
its start, where it can lose requests that were in flight at its last death (its queue takes these requests out and puts them back one by
one); that is a separate run.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bench.crash_pipelines.serve import Rev, Serve
from helpers.platform.faults import Fault, FaultyProxy, faulty
from helpers.repo.repository import ROOT
from helpers.servers.collector import Collector

__all__ = ["RETRYABLE", "TRIALS", "Load", "Pipeline", "Trial", "aim", "pipeline"]

# What OpenTelemetry's SDKs send again, of what a receiver may answer; the rest they drop.
RETRYABLE = frozenset((429, 502, 503, 504))
_APPLICATION = ROOT / "tests" / "e2e" / "pipeline_application.py"
_DRAIN_S_MAX = 240
# Longer than the longest pause between two attempts (gateway.yaml), and an attempt.
_STILL_S = 75
_WAIT_S_MAX = 180
_FETCHING = b"Fetching items left for dispatch"
# Bytes of a queue that a few seconds of the load fill.
_SMALL_QUEUE = 400_000


@dataclass(frozen=True, slots=True)
class Trial:
    """What one kind of trouble did: kills, seconds, streams acknowledged meanwhile, requests to the ingest, and how many came again."""

    name: str
    kills: int
    seconds: float
    acknowledged: int
    requests: int
    retries: int


@dataclass(frozen=True, slots=True)
class Load:
    """Streams per second, kills in each trial that kills, and seconds for which the ingest is away."""

    rate: float = 200
    kills: int = 7
    away_s: float = 60


class Pipeline:
    """The processes, with a proxy between Collector and ingest. ``load`` is what it has to bear."""

    def __init__(self, folder: pathlib.Path, serve: Serve, proxy: FaultyProxy, load: Load, seed: int) -> None:
        self.serve, self.proxy = serve, proxy
        self.collector = Collector(folder / "collector", ["gateway.yaml"], LEGATO_INGEST_URL=proxy.url)
        self.random = random.Random(seed)
        self.kills = 0
        self.load = load
        self._ledger = folder / "ledger"
        self._ledger.touch()

    def start_application(self) -> None:
        """Start the application."""
        command = [sys.executable, str(_APPLICATION), self.collector.http, str(self._ledger), str(self.load.rate)]
        self._application = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_application(self) -> None:
        """SIGKILL."""
        self._application.kill()
        self._application.wait()

    def acknowledged(self) -> set[Rev]:
        """The ledger of acknowledgements that applications received."""
        lines = (line.split() for line in self._ledger.read_text().splitlines() if line.startswith("+"))
        return {(trace, span, int(rev)) for _, trace, span, rev in lines}

    def statuses(self) -> Counter[int]:
        """The replies that applications got."""
        return Counter(int(line) for line in self._ledger.read_text().splitlines() if not line.startswith("+"))

    def attempt(self, name: str) -> Trial:
        """Run one of ``TRIALS``, and say what it did."""
        began, kills, acknowledged = time.monotonic(), self.kills, len(self.acknowledged())
        requests, retries = self.proxy.count.total(), self.proxy.retries
        TRIALS[name](self)
        # On a busy machine the application may need longer than the trial for its next stream.
        while len(self.acknowledged()) == acknowledged and time.monotonic() - began < _WAIT_S_MAX:
            time.sleep(0.25)
        return Trial(
            name,
            self.kills - kills,
            time.monotonic() - began,
            len(self.acknowledged()) - acknowledged,
            self.proxy.count.total() - requests,
            self.proxy.retries - retries,
        )

    def drain(self) -> None:
        """Wait until the Collector's queue is empty, and stays so.

        Or until it has reported the same size for longer than any pause between retries and has sent nothing: it counts incrementally, and
        the count may be wrong after a kill until the next request.
        """
        until, seen, since = time.monotonic() + _DRAIN_S_MAX, (-1.0, 0), time.monotonic()
        while True:
            now = time.monotonic()
            look = (self.collector.metric("otelcol_exporter_queue_size"), self.proxy.count.total())
            if look != seen:
                seen, since = look, now
            if now - since > (1.0 if look[0] == 0 else _STILL_S):
                break
            if now > until:
                raise SystemExit(f"the Collector still sends after {_DRAIN_S_MAX} s, {look[0]:,.0f} bytes in its queue")
            time.sleep(0.25)
        if seen[0]:
            print(f"the Collector says that {seen[0]:,.0f} bytes are in its queue, and sends nothing", flush=True)


@contextlib.contextmanager
def pipeline(folder: pathlib.Path, load: Load = Load(), *, seed: int = 1) -> Iterator[Pipeline]:
    """The pipeline under load; everything is stopped at the end."""
    serve = Serve(folder)
    try:
        with faulty(serve.otlp) as proxy:
            running = Pipeline(folder, serve, proxy, load, seed)
            running.collector.start()
            running.start_application()
            try:
                yield running
            finally:
                running.kill_application()
                running.collector.stop()
    finally:
        serve.stop()


def _kill(kill: Callable[[Pipeline], None], start: Callable[[Pipeline], None]) -> Callable[[Pipeline], None]:
    def trial(running: Pipeline) -> None:
        for _ in range(running.load.kills):
            time.sleep(running.random.uniform(0.05, 1.0))
            kill(running)
            running.kills += 1
            start(running)

    return trial


def _fault(fault: Fault, seconds: float) -> Callable[[Pipeline], None]:
    def trial(running: Pipeline) -> None:
        running.proxy.fault = fault
        time.sleep(seconds)
        running.proxy.fault = "none"

    return trial


def _outage(running: Pipeline) -> None:
    """The ingest is stopped for a while."""
    running.serve.process.terminate()
    running.serve.process.wait(60)
    time.sleep(running.load.away_s)
    running.serve.start()


def _full_queue(running: Pipeline) -> None:
    """The ingest is away, and the Collector's queue is small: it refuses what it cannot keep, and takes more when there is room."""
    _until(lambda: running.collector.metric("otelcol_exporter_queue_size") < _SMALL_QUEUE / 4, "the queue to shrink")
    running.collector.stop()
    running.collector.start(LEGATO_COLLECTOR_QUEUE_BYTES=str(_SMALL_QUEUE))
    acknowledged, refused = len(running.acknowledged()), running.statuses()[503]
    running.serve.kill()
    running.kills += 1
    _until(lambda: running.statuses()[503] > refused, "a rejected request")
    if len(running.acknowledged()) == acknowledged:
        raise SystemExit("the small queue took nothing before it was full")
    time.sleep(2)
    acknowledged = len(running.acknowledged())
    running.serve.start()
    _until(lambda: len(running.acknowledged()) > acknowledged, "the queue to take more")
    running.collector.stop()
    running.collector.start()


def _until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _WAIT_S_MAX
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"waited {_WAIT_S_MAX} s for {what}, in vain")
        time.sleep(0.1)


def _full_disk(running: Pipeline) -> None:
    """No file of the ingest may grow for some seconds."""
    process = running.serve.process.pid
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, limits[1]))
    time.sleep(6)
    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


TRIALS: Mapping[str, Callable[[Pipeline], None]] = {
    "kill the ingest": _kill(lambda running: running.serve.kill(), lambda running: running.serve.start()),
    "kill the Collector": _kill(lambda running: running.collector.kill(), lambda running: running.collector.start()),
    "kill the application": _kill(lambda running: running.kill_application(), lambda running: running.start_application()),
    "the ingest refuses (503)": _fault("refuse", 5),
    "the ingest is slow (2 s)": _fault("slow", 8),
    "requests are cut off": _fault("cut_request", 5),
    "replies are cut off": _fault("cut_reply", 5),
    "the store's disk is full": _full_disk,
    "the Collector's queue is full": _full_queue,
    "the ingest is away": _outage,
}


def aim(running: Pipeline, times: int) -> int:
    """Kill the Collector within 30 ms of the moment at which it takes up what was under way when it died; how often that hit."""
    running.proxy.fault = "slow"
    hit = 0
    for _ in range(times):
        time.sleep(running.random.uniform(0.5, 1.0))
        running.collector.kill()
        seen = running.collector.log.stat().st_size
        running.collector.spawn()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if _FETCHING in running.collector.log.read_bytes()[seen:]:
                time.sleep(running.random.uniform(0, 0.03))
                hit += 1
                break
        running.collector.kill()
        running.collector.start()
    running.proxy.fault = "none"
    return hit
