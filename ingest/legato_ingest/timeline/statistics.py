"""The statistics of streams, computed from their timelines for a batch of streams at once.

Every statistic is an operation on segments (``ragged.py``), so a batch takes a fixed number of numpy passes, and time linear in its chunks
except for one sort of the gaps. The sample consists of reads and not of chunks: no statistic changes when a chunk is split or when
simultaneous chunks are merged, except ``tokens_per_chunk`` and ``multi_token_share``, which describe the chunking itself.

TTFT, TTFO, the end, and starvation from the start of the request (``ttfo + starved``) are monotone: they never improve when a byte is
delayed. Gap statistics are not: delaying the chunks before a long gap shortens that gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.definitions import HOLD_STEP_US
from legato_ingest.timeline.codec import Timelines
from legato_ingest.timeline.ragged import Segments
from legato_ingest.timeline.reads import EPOCH_US, Reads, find_reads, gaps_between_epochs

__all__ = [
    "BUCKETS_PER_DOUBLING",
    "BYTES_PER_WORD",
    "EPOCH_US",
    "EPOCHS_MIN",
    "READING_RATES_WPS",
    "THRESHOLDS_MS",
    "Statistics",
    "describe",
]

THRESHOLDS_MS = (100, 250, 400, 1000, 2000)
READING_RATES_WPS = (2, 4, 6, 8)
# A word takes 6 bytes of UTF-8: 4.6 letters in English (Brysbaert 2019), a space, and a share of punctuation and markup.
BYTES_PER_WORD = 6
# With fewer epochs, a jitter ratio or a head burst would be dominated by chance.
EPOCHS_MIN = 8
EDGE_US = 200_000
BUCKETS_PER_DOUBLING = 4
TOP = 5

Column = NDArray[Any]


@dataclass(slots=True)
class Statistics:
    """The statistics of a batch: one entry per stream and column. Where ``known[name]`` is False the value is unknown (NULL in the store).

    ``columns`` has the names and units of ``stream_revs``. ``top`` and ``histogram`` hold one array per stream, as segments and their
    values (``gap_top_us``; ``gap_bucket`` and ``gap_bucket_count``).
    """

    columns: Mapping[str, Column]
    known: dict[str, NDArray[np.bool_]]
    top: tuple[Segments, Column]
    histogram: tuple[Segments, Column, Column]


def describe(
    timelines: Timelines, durations_us: NDArray[np.int64], open_ended: NDArray[np.bool_], output_tokens: NDArray[np.float64]
) -> Statistics:
    """Compute the statistics of each stream of a batch.

    ``durations_us`` is the time from the start of the stream to its end. ``open_ended`` is True for a stream that ended with a cancel, an
    error or a time-out; the time since its last content is a gap, too. ``output_tokens`` is the reported number, NaN where unknown.
    """
    reads = find_reads(timelines)
    has_content = reads.streams.lengths > 0
    last = reads.streams.lasts(reads.times_us)
    open_us = np.where(open_ended & has_content, np.maximum(durations_us - last, 0), 0)
    closed, gaps = gaps_between_epochs(reads)
    spread = _spread(closed, gaps)
    streams, ordered = _sorted_with_open(closed, gaps, open_us, open_ended & has_content)

    columns: dict[str, Column] = {"gap_open_us": open_us, "gaps": streams.lengths}
    known: dict[str, NDArray[np.bool_]] = {"gap_open_us": open_ended & has_content}
    for part in (
        _first_times(timelines, reads),
        _quantiles(streams, ordered),
        _exceedances(streams, ordered),
        _chunking(timelines, reads, output_tokens),
        _edges(reads, timelines.has_sizes),
        spread,
        _starvation(reads, timelines.has_sizes),
        _holds(timelines),
    ):
        columns.update(part[0])
        known.update(part[1])
    _jitter(columns, known, closed.lengths)
    return Statistics(columns, known, _top(streams, ordered), _histogram(streams, ordered))


Part = tuple[dict[str, Column], dict[str, NDArray[np.bool_]]]


def _sorted_with_open(
    closed: Segments, gaps: NDArray[np.int64], open_us: NDArray[np.int64], is_open: NDArray[np.bool_]
) -> tuple[Segments, NDArray[np.int64]]:
    """Return the gaps of each stream in ascending order, including its open gap."""
    streams = Segments.of_lengths(closed.lengths + is_open)
    values = np.empty(streams.total, np.int64)
    if is_open.any():
        last = np.zeros(streams.total, np.bool_)
        last[(streams.ends - 1)[is_open]] = True
        values[last] = open_us[is_open]
        values[~last] = gaps
    else:
        values[:] = gaps
    return streams, streams.sort(values)


def _first_times(timelines: Timelines, reads: Reads) -> Part:
    """Return TTFT (first content of any kind) and TTFO (first visible text) from the stream's start; chunks and bytes of content."""
    content = reads.streams.lengths > 0
    text = Segments.of_lengths(reads.streams.sums(reads.has_text))
    columns = {
        "ttft_us": reads.streams.firsts(reads.times_us),
        "ttfo_us": text.firsts(reads.times_us[reads.has_text]),
        "content_chunks": reads.content_chunks,
        "content_bytes": reads.streams.sums(reads.sizes),
    }
    known = {"ttft_us": content, "ttfo_us": text.lengths > 0, "content_bytes": timelines.has_sizes}
    return columns, known


def _quantiles(streams: Segments, ordered: NDArray[np.int64]) -> Part:
    """Return sum, maximum, order statistics at rank ⌈p n⌉ (Hyndman & Fan 1996, type 1), and the time-weighted median of the gaps.

    The time-weighted median is the smallest gap such that the gaps up to it make up half of the total time in gaps. Gaps of 0 have no
    weight.
    """
    some = streams.lengths > 0
    columns: dict[str, Column] = {"gap_sum_us": streams.sums(ordered), "gap_max_us": streams.lasts(ordered)}
    for percent in (50, 95, 99):
        rank = -(-percent * streams.lengths // 100)
        columns[f"gap_p{percent}_us"] = _pick(streams, ordered, rank - 1)
    running = streams.cumulate(ordered)
    light = 2 * running < np.repeat(columns["gap_sum_us"], streams.lengths)
    columns["gap_twq50_us"] = _pick(streams, ordered, streams.sums(light))
    return columns, {name: some for name in columns if name != "gap_sum_us"}


def _pick(streams: Segments, values: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the value of each stream at this place; 0 for a stream without values."""
    out = np.zeros(len(streams.lengths), np.int64)
    at = np.minimum(rank, streams.lengths - 1)
    out[streams.filled] = values[(streams.starts + at)[streams.filled]]
    return out


def _exceedances(streams: Segments, ordered: NDArray[np.int64]) -> Part:
    """Return the number of gaps that reach each threshold, and Σ(gap − threshold) over them. Both are exact and additive over streams."""
    columns: dict[str, Column] = {}
    count = len(streams.lengths)
    long = np.flatnonzero(ordered >= THRESHOLDS_MS[0] * 1000)
    gaps, owners = ordered[long], streams.owners()[long]
    for threshold in THRESHOLDS_MS:
        over = gaps >= threshold * 1000
        excess = np.zeros(count, np.int64)
        np.add.at(excess, owners[over], gaps[over] - threshold * 1000)
        columns[f"stalls_{threshold}ms"] = np.bincount(owners[over], minlength=count)
        columns[f"excess_{threshold}ms_us"] = excess
    return columns, {}


def _chunking(timelines: Timelines, reads: Reads, output_tokens: NDArray[np.float64]) -> Part:
    """Return the mean number of tokens per content chunk, and the share of content chunks with more than one token.

    Without tokens in the timeline, the mean is computed from the reported total and the share is unknown.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.where(timelines.has_tokens, timelines.streams.sums(timelines.tokens), output_tokens)
        per_chunk = total / reads.content_chunks
        share = timelines.streams.sums(timelines.tokens > 1) / reads.content_chunks
    some = reads.content_chunks > 0
    columns = {"tokens_per_chunk": per_chunk, "multi_token_share": share}
    return columns, {"tokens_per_chunk": some & ~np.isnan(total), "multi_token_share": some & timelines.has_tokens}


def _edges(reads: Reads, has_sizes: NDArray[np.bool_]) -> Part:
    """Return head burst and tail flush: the bytes in the first (last) 200 ms of content over the bytes of 200 ms at the middle rate.

    The middle rate is the slope between the reads that complete 20 % and 80 % of the bytes. These are two order statistics instead of a
    Theil–Sen fit, so that the time stays linear. The ratio is about 1 for a steady stream, and far above 1 if the head (tail) was
    delivered at once.
    """
    streams, times, sizes = reads.streams, reads.times_us, reads.sizes
    running = streams.cumulate(sizes)
    total = streams.lasts(running)
    spread = np.repeat(total, streams.lengths)
    at20 = np.minimum(streams.sums(5 * running < spread), np.maximum(streams.lengths - 1, 0))
    at80 = np.minimum(streams.sums(5 * running < 4 * spread), np.maximum(streams.lengths - 1, 0))
    span_us = _pick(streams, times, at80) - _pick(streams, times, at20)
    span_bytes = _pick(streams, running, at80) - _pick(streams, running, at20)
    since = times - np.repeat(streams.firsts(times), streams.lengths)
    until = np.repeat(streams.lasts(times), streams.lengths) - times
    known = has_sizes & (streams.lengths >= EPOCHS_MIN) & (span_us > 0) & (span_bytes > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = span_bytes / span_us * EDGE_US
        head = streams.sums(np.where(since <= EDGE_US, sizes, 0)) / expected
        tail = streams.sums(np.where(until <= EDGE_US, sizes, 0)) / expected
    return {"head_burst": head, "tail_flush": tail}, {"head_burst": known, "tail_flush": known}


def _spread(closed: Segments, gaps: NDArray[np.int64]) -> Part:
    """Return the burstiness A_n of Kim & Jo (Phys. Rev. E 94, 032311, 2016) over n gaps: −1 regular, 0 Poisson, 1 a single burst."""
    n = closed.lengths.astype(np.float64)
    values = gaps.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = closed.sums(values, np.float64) / n
        deviation = values - np.repeat(mean, closed.lengths)
        ratio = np.sqrt(closed.sums(deviation * deviation, np.float64) / n) / mean
        up, down = np.sqrt(n + 1), np.sqrt(np.maximum(n - 1, 0))
        burstiness = (up * ratio - down) / ((up - 2) * ratio + down)
    return {"burstiness": burstiness}, {"burstiness": (closed.lengths >= EPOCHS_MIN - 1) & np.isfinite(burstiness)}


def _starvation(reads: Reads, has_sizes: NDArray[np.bool_]) -> Part:
    """Return how long an end user who reads r words/s waits for text after the first text.

    It is the maximum over reads of [V − V₁ − (bytes before) / (6 r)]⁺, which is Lindley's recursion in closed form. With a prebuffer of D,
    (starved − D)⁺ would remain. Only text counts; a word is 6 bytes.
    """
    streams = reads.streams
    text = Segments.of_lengths(streams.sums(reads.has_text))
    first = text.firsts(reads.times_us[reads.has_text])
    before = streams.cumulate(reads.text_sizes) - reads.text_sizes
    since = reads.times_us - np.repeat(first, streams.lengths)
    # ⌊⌊x / a⌋ / b⌋ = ⌊x / (a b)⌋, so one slow division serves all rates.
    at_one_word = before * 1_000_000 // BYTES_PER_WORD
    shown = reads.text_sizes > 0
    if not shown.all():
        streams, since, at_one_word = streams.select(shown), since[shown], at_one_word[shown]
    columns: dict[str, Column] = {}
    for rate in READING_RATES_WPS:
        columns[f"starved_{rate}wps_us"] = np.maximum(streams.maxima(since - at_one_word // rate), 0)
    known = has_sizes & (text.lengths > 0)
    return columns, {name: known for name in columns}


def _holds(timelines: Timelines) -> Part:
    """Return the sum and the maximum of the holds (the consumer's time of each chunk), in steps of 64 µs."""
    streams, holds = timelines.streams, timelines.holds
    columns: dict[str, Column] = {
        "hold_sum_us": streams.sums(holds) * HOLD_STEP_US,
        "hold_max_us": streams.maxima(holds).astype(np.int64) * HOLD_STEP_US,
    }
    return columns, {name: timelines.has_holds for name in columns}


def _jitter(columns: dict[str, Column], known: dict[str, NDArray[np.bool_]], closed: NDArray[np.int64]) -> None:
    """Add the jitter ratio: p99 gap over median gap, both by rank, so it is at least 1 and a longer freeze never lowers it.

    The time-weighted median is no denominator: a freeze that takes half of a stream's time is this median itself. The denominator is at
    least the resolution of the timer, 1 µs.
    """
    columns["jitter_ratio"] = columns["gap_p99_us"] / np.maximum(columns["gap_p50_us"], 1)
    known["jitter_ratio"] = closed >= EPOCHS_MIN - 1


def _top(streams: Segments, ordered: NDArray[np.int64]) -> tuple[Segments, Column]:
    """Return the five longest gaps of each stream, longest first."""
    lengths = np.minimum(streams.lengths, TOP)
    top = Segments.of_lengths(lengths)
    return top, ordered[np.repeat(streams.ends - 1, lengths) - top.ranks()]


def _histogram(streams: Segments, ordered: NDArray[np.int64]) -> tuple[Segments, Column, Column]:
    """Return sparse logarithmic histograms: bucket b counts gaps in [2^(b/4), 2^((b+1)/4)) µs; gaps under 1 µs are in bucket 0."""
    bucket = np.floor(np.log2(np.maximum(ordered, 1)) * BUCKETS_PER_DOUBLING).astype(np.uint8)
    owners = streams.owners()
    change = np.ones(len(bucket), np.bool_)
    change[1:] = (bucket[1:] != bucket[:-1]) | (owners[1:] != owners[:-1])
    at = np.flatnonzero(change)
    counts = np.diff(np.append(at, len(bucket)))
    return Segments.of_lengths(np.bincount(owners[at], minlength=len(streams.lengths))), bucket[at], counts
