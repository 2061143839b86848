"""One attribution run: load the streams of a stretch of time, judge their gaps, write the verdicts.

The result depends only on the contents of the store, so a run may be repeated when more evidence has arrived: the newest verdict of a gap
counts. A run handles slices of bounded time and memory, and never changes streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato_ingest.attribution.judging import Judged, Judging, judged_rows
from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.evidence import load_evidence
from legato_ingest.attribution.load.streams import Most, slices_of, streams_in
from legato_ingest.attribution.load.superseded import superseded_stalls
from legato_ingest.attribution.model.judge import Thresholds
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.verdict_rows import withdrawn_rows
from legato_ingest.definitions import by_tenant
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import Store

__all__ = ["RunResult", "attribute", "attribute_streams", "withdraw"]

# What is in memory at once.
_MOST = Most(streams=4_000, bytes=2**29)


@dataclass(slots=True)
class RunResult:
    """The number of streams that a run judged, and of verdicts that it wrote."""

    streams: int = 0
    verdicts: int = 0

    def add(self, other: RunResult) -> None:
        """Add the numbers of another run."""
        self.streams += other.streams
        self.verdicts += other.verdicts


def attribute(
    store: Store,
    due: Due,
    thresholds: Thresholds,
    judged_at_ns: int,
    stopping: Callable[[], bool],
    failed: Callable[[Exception], None],
    judging: Judging = judged_rows,
) -> RunResult:
    """Judge the streams that are due, and withdraw the stalls of servers with a client among them.

    ``stopping`` is called before each slice; if it returns True the run ends early. ``failed`` is called with the error of streams that
    could not be judged; they are left out. ``judging`` judges evidence. Raises ``StoreUnavailable`` if the store cannot answer now.
    """
    result = RunResult()
    gap_us = thresholds.gap_ns // 1000
    result.verdicts += withdraw(store, due, judged_at_ns)
    for each in slices_of(store, due, gap_us, _MOST):
        if stopping():
            break
        for streams in streams_in(store, each, gap_us, _MOST):
            result.add(attribute_streams(store, streams, thresholds, judged_at_ns, failed, judging))
    return result


def attribute_streams(
    store: Store,
    streams: Sequence[Stream],
    thresholds: Thresholds,
    judged_at_ns: int,
    failed: Callable[[Exception], None],
    judging: Judging = judged_rows,
) -> RunResult:
    """Judge these streams; if that fails, those of each tenant apart: the streams of one cost no other its verdicts.

    The error would occur again in every run, and must not keep other streams from being judged. ``failed`` and errors are as in
    ``attribute``.
    """
    result, left = RunResult(), [streams] if streams else []
    while left:
        batch = left.pop()
        try:
            result.add(_write(store, judging(load_evidence(store, batch), thresholds, judged_at_ns), failed))
        except StoreUnavailable:
            raise
        except Exception as error:
            tenants = by_tenant(batch)
            if len(tenants) > 1:
                left += tenants.values()
            else:
                failed(error)
    return result


def withdraw(store: Store, due: Due, judged_at_ns: int) -> int:
    """Withdraw the verdicts on stalls that others replace (``load.superseded``), and return their number.

    It precedes the verdicts on the client's stalls, so no stall is counted twice.
    """
    withdrawn = 0
    for stalls in superseded_stalls(store, due):
        store.insert("verdicts", withdrawn_rows(stalls, judged_at_ns))
        withdrawn += int(stalls.num_rows)
    return withdrawn


def _write(store: Store, judged: Judged, failed: Callable[[Exception], None]) -> RunResult:
    """Write the rows of a judgement. Counterfactuals come first: alone they do not count."""
    for error in judged.errors:
        failed(error)
    store.insert("replays", judged.counterfactuals)
    store.insert("verdicts", judged.verdicts)
    return RunResult(judged.streams, int(judged.verdicts.num_rows))
