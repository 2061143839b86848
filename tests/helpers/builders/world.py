"""A simulated deployment for attribution tests: an engine, its front end, a network path and streams, with faults on request.

The engine runs steps, and each stream gets one token per step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.steps import Steps
from legato_ingest.attribution.model.vantage import Vantage

__all__ = ["MS", "World"]

MS = 1_000_000
BASE_NS, TOKEN_NS, REQUEST_NS = 20 * MS, 200_000, 5 * MS


@dataclass
class World:
    """``steps`` steps of about 20 ms with ``streams`` running streams. Faults are keyed by step number; all times are in ns.

    - ``busy``: additional requests in a step; each makes the step 5 ms longer.
    - ``prefill``: prompt tokens of another request in a step; each makes the step 0.2 ms longer.
    - ``slow``: additional duration of a step, without a recorded reason.
    - ``throttled``: the factor by which the GPU's clock is divided in a step; the step takes longer by the same factor.
    - ``frozen``: (step, ns), the front end stops for this time after the step.
    - ``preempted``: (first, last), stream 0 gets no token in these steps and is recomputed in the last one.
    - ``held``: (step, ns), the network path delays the data of stream 0 from this step on for this time.
    - ``speed`` divides all times.
    """

    steps: int = 400
    streams: int = 4
    seed: int = 1
    speed: int = 1
    offset_ns: int = 0
    busy: dict[int, int] = field(default_factory=dict)
    prefill: dict[int, int] = field(default_factory=dict)
    slow: dict[int, int] = field(default_factory=dict)
    throttled: dict[int, float] = field(default_factory=dict)
    frozen: tuple[int, int] | None = None
    preempted: tuple[int, int] | None = None
    held: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        took = BASE_NS + rng.integers(-MS, MS, self.steps)
        for step, tokens in self.prefill.items():
            took[step] += TOKEN_NS * tokens
        for step, more in self.busy.items():
            took[step] += REQUEST_NS * more
        for step, extra in self.slow.items():
            took[step] += extra
        if self.preempted:
            took[self.preempted[1]] += TOKEN_NS * 600
        for step, times in self.throttled.items():
            took[step] = int(took[step] * times)
        self.ends = 10**15 + self.offset_ns + np.cumsum(took) // self.speed
        self.awake = self.ends.copy()
        if self.frozen:
            step, length = self.frozen
            until = self.ends[step] + length // self.speed
            self.awake = np.where((self.ends > self.ends[step]) & (self.ends < until), until, self.ends)
        self.recorded = np.maximum.accumulate(self.awake + rng.integers(100_000, 400_000, self.steps) // self.speed)
        self.took = took // self.speed

    def records(self) -> Steps:
        """The steps as the engine plugin records them."""
        count = self.steps
        running = np.full(count, float(self.streams))
        waiting, decode = np.zeros(count), np.full(count, float(self.streams))
        for step, more in self.busy.items():
            decode[step] += more
        tokens = decode.copy()
        if self.preempted:
            first, last = self.preempted
            running[first:last] -= 1
            waiting[first:last] += 1
            decode[first:last] -= 1
            tokens[first:last] -= 1
            tokens[last] += 600
        prefill = np.zeros(count)
        for step, size in self.prefill.items():
            prefill[step] = size
        return Steps(
            number=np.arange(count),
            recorded_ns=self.recorded,
            interval_ns=np.where(np.arange(count) == 0, np.nan, self.took.astype(float)),
            running=running,
            waiting=waiting,
            prefill_requests=(prefill > 0).astype(float),
            prefill_tokens=prefill,
            decode_requests=decode,
            decode_tokens=tokens,
            draft_tokens=np.zeros(count),
            preempted=np.full(count, np.nan),
            finished=np.zeros(count),
        )

    def gpu(self, every_ns: int = 100 * MS, soft: bool = False, usual_mhz: float = 1980.0, idle: bool = False) -> GpuClock:
        """Samples of a GPU every ``every_ns``: the driver's throttling time counters and the clock in MHz.

        The throttling has hard reasons, or ``soft`` ones. With ``idle`` the GPU was never throttled.
        """
        times = np.arange(self.ends[0] - 2 * every_ns, self.ends[-1] + 3 * every_ns, every_ns)
        low = np.zeros(self.steps) if idle else np.array([self.throttled.get(step, 0.0) for step in range(self.steps)])
        starts = self.ends - self.took
        counted = np.zeros(len(times))
        mhz = np.full(len(times), usual_mhz)
        for step in np.flatnonzero(low):
            counted += np.clip(times - starts[step], 0, self.took[step])
            mhz[(times > starts[step]) & (times <= self.ends[step])] = usual_mhz / low[step]
        none = np.zeros(len(times))
        return GpuClock(times, none if soft else counted, counted if soft else none, mhz)

    def server(self, stream: int) -> Vantage:
        """The times at which the stream's tokens were sent: one per step, shortly after the front end ran."""
        sent = self.recorded + 200_000 // self.speed + 1000 * stream
        if stream == 0 and self.preempted:
            first, last = self.preempted
            sent = np.delete(sent, np.arange(first, last))
        return Vantage(sent, np.zeros(0, np.int64), np.zeros(0, np.int64))

    def client(self, stream: int, offset_ns: int = 0, drift_ppm: float = 0.0) -> Vantage:
        """The times at which the tokens arrived, by a client clock with the given offset and drift."""
        arrived = self.server(stream).times_ns + 300_000 // self.speed
        if stream == 0 and self.held:
            step, length = self.held
            until = arrived[step] + length // self.speed
            arrived = np.where((np.arange(len(arrived)) >= step) & (arrived < until), until, arrived)
        own = arrived + offset_ns + ((arrived - arrived[0]) * drift_ppm / 1e6).astype(np.int64)
        return Vantage(own, np.zeros(0, np.int64), np.zeros(0, np.int64))
