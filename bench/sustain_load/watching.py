"""Watches `legato serve` and its children under a load: processor time, memory, the lag of the rollups, and when verdicts are stored.

Once a second a probe takes a client's stream with a stall that has just been acknowledged, and asks for its verdict until it is there. The
probes are queries of the read endpoint, so they are a small load themselves, and make `legato serve` insert what it has acknowledged. Under
a light load there are fewer of them, and fewer reads of the metrics; without probes nothing is queried while the load runs.
"""

from __future__ import annotations

import json
import os
import pathlib
import queue
import threading
import time
import urllib.request
from dataclasses import dataclass, field

from bench.sustain_load.sending import Sending

__all__ = ["Observed", "Watching", "query"]

_EVERY_S = 1.0
_PROBE_S_MAX = 120.0
# Under a light load: the time between two samples of the metrics, between two probes, and from a stream's end to the first question.
_LIGHT_SAMPLE_S, _LIGHT_PROBE_S, _LIGHT_ASK_S = 15.0, 20.0, 5.0
_HZ = os.sysconf("SC_CLK_TCK")
_STALLED = """
SELECT lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span
FROM stream_revs WHERE start_time > now() - INTERVAL 15 MINUTE AND (trace_id, span_id) IN ({keys}) AND stalls_250ms > 0
FORMAT JSONEachRow"""
_JUDGED = """
SELECT lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span FROM verdicts
WHERE start_time > now() - INTERVAL 15 MINUTE AND (trace_id, span_id) IN ({keys}) GROUP BY trace_id, span_id
FORMAT JSONEachRow"""


def query(read: str, sql: str) -> list[dict[str, object]]:
    """Run a query with FORMAT JSONEachRow at the read endpoint and return its rows."""
    with urllib.request.urlopen(urllib.request.Request(read, sql.encode()), timeout=60) as reply:
        return [json.loads(line) for line in reply.read().splitlines()]


@dataclass(slots=True)
class Observed:
    """Series of one run, a value a second: processor time in cores, memory in MB, lags in s; and the delays of the probes in s.

    ``unjudged``: probes without a verdict after two minutes.
    """

    cores: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    rollup_lag_s: list[float] = field(default_factory=list)
    attribution_lag_s: list[float] = field(default_factory=list)
    verdict_delay_s: list[float] = field(default_factory=list)
    unjudged: int = 0


class Watching:
    """Watches a process and its children from `start` to `stop`. ``is_light``: whether the load is light.

    ``has_probes``: whether to ask for verdicts while it runs.
    """

    def __init__(self, process: int, otlp: str, read: str, sending: Sending, is_light: bool = False, has_probes: bool = True) -> None:
        self._process, self._otlp, self._read, self._sending = process, otlp, read, sending
        self._sample_s, self._probe_s, self._ask_s = (
            (_LIGHT_SAMPLE_S, _LIGHT_PROBE_S, _LIGHT_ASK_S) if is_light else (_EVERY_S, _EVERY_S, 0.0)
        )
        self._ended = threading.Event()
        self.observed = Observed()
        watching = (self._sample, self._probe) if has_probes else (self._sample,)
        self._threads = [threading.Thread(target=each) for each in watching]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def stop(self) -> Observed:
        """End and return what was observed."""
        self._ended.set()
        for each in self._threads:
            each.join()
        return self.observed

    def _sample(self) -> None:
        before, at = self._processor_s(), time.monotonic()
        while not self._ended.wait(self._sample_s) or not self.observed.cores:
            now, time_s = self._processor_s(), time.monotonic()
            self.observed.cores.append((now - before) / (time_s - at))
            before, at = now, time_s
            self.observed.rss_mb.append(self._memory_mb())
            with urllib.request.urlopen(f"{self._otlp}/metrics", timeout=60) as reply:
                lines = reply.read().decode().splitlines()
            lags = dict(
                line.split() for line in lines if line.startswith(("legato_rollup_lag_seconds ", "legato_attribution_lag_seconds "))
            )
            self.observed.rollup_lag_s.append(float(lags.get("legato_rollup_lag_seconds", "nan")))
            self.observed.attribution_lag_s.append(float(lags.get("legato_attribution_lag_seconds", "nan")))

    def _processor_s(self) -> float:
        stats = [text.rpartition(")")[2].split() for text in self._read_proc("stat")]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _HZ

    def _memory_mb(self) -> float:
        return sum(int(text.split("VmRSS:")[1].split()[0]) for text in self._read_proc("status")) / 1024

    def _read_proc(self, name: str) -> list[str]:
        """Return this file of the process and of its children; one of them judges streams."""
        process = pathlib.Path(f"/proc/{self._process}")
        children = [child for each in process.glob("task/*/children") for child in each.read_text(encoding="utf-8").split()]
        return [(pathlib.Path("/proc", each) / name).read_text(encoding="utf-8") for each in (str(self._process), *children)]

    def _probe(self) -> None:
        """Look for stalls among the streams that ended since the last look, and for the verdicts on earlier ones."""
        waiting: dict[tuple[str, str], float] = {}
        next_s = 0.0
        while not self._ended.wait(_EVERY_S):
            fresh = self._taken()
            if fresh and time.time() >= next_s:
                # One new probe is enough.
                for row in query(self._read, _STALLED.format(keys=_keys(fresh)))[:1]:
                    key = str(row["trace"]), str(row["span"])
                    waiting[key] = fresh[key]
                    next_s = time.time() + self._probe_s - _EVERY_S / 2
            asked = {key: ended_s for key, ended_s in waiting.items() if time.time() - ended_s >= self._ask_s}
            judged = query(self._read, _JUDGED.format(keys=_keys(asked))) if asked else []
            now_s = time.time()
            for row in judged:
                self.observed.verdict_delay_s.append(now_s - waiting.pop((str(row["trace"]), str(row["span"]))))
            for key in [key for key, ended_s in waiting.items() if now_s - ended_s > _PROBE_S_MAX]:
                del waiting[key]
                self.observed.unjudged += 1
                self.observed.verdict_delay_s.append(_PROBE_S_MAX)

    def _taken(self) -> dict[tuple[str, str], float]:
        out: dict[tuple[str, str], float] = {}
        while True:
            try:
                trace, span, end_ns = self._sending.ended.get_nowait()
            except queue.Empty:
                return out
            if len(out) < 40:
                out[trace.hex(), span.hex()] = end_ns / 1e9


def _keys(keys: dict[tuple[str, str], float]) -> str:
    return ", ".join(f"(unhex('{trace}'), unhex('{span}'))" for trace, span in keys)
