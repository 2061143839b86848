"""How much of each engine step GPU throttling explains, from samples of the driver's counters.

The driver counts the time with lowered clocks by reason, so no throttling between two samples is missed: the growth of the counter bounds
the time that a step lost to it. A busy GPU is always close to its power limit, so time under a power limit counts only if the clock itself
was seen below its usual frequency. Time under a thermal limit or a power brake counts without that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLOCK_DROP_MIN", "GpuClock", "Throttling", "throttling_in", "throttling_share_ns"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CLOCK_DROP_MIN = 0.03
"""A clock counts as lowered if it is below the usual frequency by more than this share; healthy clocks vary by less."""
# Two samples with a longer distance give no information about the time between them.
_SAMPLE_DISTANCE_NS_MAX = 10_000_000_000


@dataclass(frozen=True, slots=True)
class GpuClock:
    """The samples of one GPU, in order of time.

    ``hard_ns``: ns with lowered clocks so far, by thermal limits and power brakes; ``soft_ns``: by power limits. ``mhz``: the SM clock at
    the time of the sample (NaN: unknown).
    """

    times_ns: Ints
    hard_ns: Floats
    soft_ns: Floats
    mhz: Floats


@dataclass(frozen=True, slots=True)
class Throttling:
    """Throttling in each of several stretches of time, usually steps.

    ``known``: samples of every GPU surround the stretch. ``hard_ns``, ``soft_ns``: the most that any GPU may have been throttled in it.
    ``mhz``: the lowest clock that was seen around it (NaN: unknown).
    """

    known: Bools
    hard_ns: Floats
    soft_ns: Floats
    mhz: Floats

    @classmethod
    def unknown(cls, count: int) -> Throttling:
        """Return the result without samples."""
        zeros = np.zeros(count)
        return cls(np.zeros(count, np.bool_), zeros, zeros, np.full(count, np.nan))


def throttling_in(gpus: Sequence[GpuClock], start_ns: Ints, end_ns: Ints) -> Throttling:
    """Return what the samples show about each of these stretches."""
    if not gpus or not len(start_ns):
        return Throttling.unknown(len(start_ns))
    each = [_of_gpu(gpu, start_ns, end_ns) for gpu in gpus]
    mhz = np.stack([np.where(np.isnan(one.mhz), np.inf, one.mhz) for one in each]).min(axis=0)
    return Throttling(
        known=np.asarray(np.stack([one.known for one in each]).all(axis=0)),
        hard_ns=np.stack([one.hard_ns for one in each]).max(axis=0),
        soft_ns=np.stack([one.soft_ns for one in each]).max(axis=0),
        mhz=np.where(np.isinf(mhz), np.nan, mhz),
    )


def _of_gpu(gpu: GpuClock, start_ns: Ints, end_ns: Ints) -> Throttling:
    """Return the throttling of one GPU, from the last sample before each stretch to the first after it."""
    times = gpu.times_ns
    if not len(times):
        return Throttling.unknown(len(start_ns))
    before = np.searchsorted(times, start_ns, "right") - 1
    after = np.searchsorted(times, end_ns, "left")
    low, high = np.maximum(before, 0), np.minimum(after, len(times) - 1)
    holes = np.concatenate([[0], np.cumsum(np.diff(times) > _SAMPLE_DISTANCE_NS_MAX)])
    known = (before >= 0) & (after < len(times)) & (holes[high] == holes[low])
    mhz = np.where(np.isnan(gpu.mhz), np.inf, gpu.mhz)
    lowest = np.minimum(mhz[low], mhz[high])
    # Steps are shorter than the interval of the samples, so few of them contain a sample.
    for row in np.flatnonzero(high - low > 1):
        lowest[row] = mhz[low[row] : high[row] + 1].min()
    length = (end_ns - start_ns).astype(np.float64)
    return Throttling(
        known=known,
        hard_ns=np.where(known, np.clip(gpu.hard_ns[high] - gpu.hard_ns[low], 0, length), 0.0),
        soft_ns=np.where(known, np.clip(gpu.soft_ns[high] - gpu.soft_ns[low], 0, length), 0.0),
        mhz=np.where(known & ~np.isinf(lowest), lowest, np.nan),
    )


def throttling_share_ns(gpus: Sequence[GpuClock], end_ns: Ints, demand_ns: Floats, usual_mhz: float) -> Floats:
    """Return how much of each step's ``demand_ns`` throttling can explain. The steps follow each other and end at ``end_ns``.

    Between two samples no more is granted than the driver counted there. A step that extends over several intervals between samples spreads
    its demand evenly over its time. With several GPUs the one that explains the most counts, because all others wait for it.
    """
    out = np.zeros(len(end_ns))
    for gpu in gpus:
        out = np.maximum(out, _share_of_gpu(gpu, end_ns, demand_ns, usual_mhz))
    return out


def _share_of_gpu(gpu: GpuClock, end_ns: Ints, demand_ns: Floats, usual_mhz: float) -> Floats:
    """Return what one GPU explains, by running totals of the demand and of what is granted."""
    times = gpu.times_ns
    if len(times) < 2 or not len(end_ns):
        return np.zeros(len(end_ns))
    counted = _counted_ns(gpu, usual_mhz)
    demanded = np.cumsum(demand_ns)
    at_samples = np.interp(times, end_ns, demanded)
    in_interval = np.diff(at_samples)
    share = np.minimum(1.0, np.divide(counted, in_interval, out=np.zeros_like(in_interval), where=in_interval > 0))
    granted = np.concatenate([[0.0], np.cumsum(in_interval * share)])
    interval = np.searchsorted(times, end_ns, "right") - 1
    inside = (interval >= 0) & (interval < len(share))
    at = np.clip(interval, 0, len(share) - 1)
    total = np.where(inside, granted[at] + share[at] * (demanded - at_samples[at]), np.where(interval < 0, 0.0, granted[-1]))
    return np.maximum(np.diff(total, prepend=total[:1]), 0.0)


def _counted_ns(gpu: GpuClock, usual_mhz: float) -> Floats:
    """Return the ns of throttling between each sample and the next; 0 where the samples are too far apart."""
    length = np.diff(gpu.times_ns)
    hard, soft = np.diff(gpu.hard_ns), np.diff(gpu.soft_ns)
    is_low = np.fmin(gpu.mhz[:-1], gpu.mhz[1:]) < (1 - CLOCK_DROP_MIN) * usual_mhz
    counted = np.where(is_low, np.maximum(hard, soft), hard)
    return np.where(length > _SAMPLE_DISTANCE_NS_MAX, 0.0, np.clip(counted, 0.0, length))
