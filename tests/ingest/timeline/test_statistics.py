"""Statistics of streams: each compared with its definition in plain Python, and the properties that users rely on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato._timeline import pack
from legato_ingest.timeline.codec import Timelines, decode, read_head
from legato_ingest.timeline.statistics import THRESHOLDS_MS, Statistics, describe

TEXT, REASONING, TOOL = 1, 2, 3
CONTENT = (TEXT, REASONING, TOOL)


@dataclass
class Sample:
    """One stream: (µs from the start, bytes, tokens, kind) of each chunk."""

    chunks: list[tuple[int, int, int, int]]
    end_us: int = 0
    open_ended: bool = False
    output_tokens: float = math.nan
    holds_us: list[int] | None = field(default=None)

    def packed(self) -> bytes:
        """Return the packed timeline of the stream."""
        times, sizes, tokens, kinds = (list(column) for column in zip(*self.chunks, strict=True)) if self.chunks else ([], [], [], [])
        return pack(times, sizes, tokens, kinds, self.holds_us)


def timelines_of(samples: list[Sample]) -> Timelines:
    """Return the decoded timelines of the samples."""
    blobs = [sample.packed() for sample in samples]
    timelines, bad = decode(blobs, [read_head(blob) for blob in blobs])
    assert not bad
    return timelines


def describe_all(samples: list[Sample]) -> Statistics:
    """Return the statistics of all samples, computed in one batch."""
    return describe(
        timelines_of(samples),
        np.array([sample.end_us for sample in samples], np.int64),
        np.array([sample.open_ended for sample in samples], np.bool_),
        np.array([sample.output_tokens for sample in samples], np.float64),
    )


def figure(statistics: Statistics, name: str, i: int = 0) -> Any:
    """Return one statistic of one stream; ``None`` where it is unknown."""
    known = statistics.known.get(name)
    return None if known is not None and not known[i] else statistics.columns[name][i].item()


def describe_one(sample: Sample) -> dict[str, Any]:
    """Return all statistics of one stream."""
    statistics = describe_all([sample])
    return {name: figure(statistics, name) for name in statistics.columns}


def epochs_of(sample: Sample) -> list[tuple[int, int]]:
    """Return the (first, last) time of each epoch by its definition."""
    times = sorted({time for time, _, _, kind in sample.chunks if kind in CONTENT})
    epochs: list[tuple[int, int]] = []
    for time in times:
        if epochs and time - epochs[-1][0] < 5_000:
            epochs[-1] = (epochs[-1][0], time)
        else:
            epochs.append((time, time))
    return epochs


def gaps_of(sample: Sample) -> list[int]:
    """Return the gaps, including the open gap."""
    epochs = epochs_of(sample)
    gaps = [after[0] - before[1] for before, after in zip(epochs, epochs[1:], strict=False)]
    if sample.open_ended and epochs:
        gaps.append(max(0, sample.end_us - epochs[-1][1]))
    return gaps


def starved_us(sample: Sample, rate: int) -> int:
    """Return the time that an end user waits after the first text, simulated read by read."""
    texts: dict[int, int] = {}
    for time, size, _, kind in sample.chunks:
        if kind == TEXT:
            texts[time] = texts.get(time, 0) + size
    waits, before, first = [0], 0, None
    for time in sorted(texts):
        first = time if first is None else first
        if texts[time]:
            waits.append(time - first - before * 1_000_000 // (6 * rate))
        before += texts[time]
    return max(waits)


chunk = st.tuples(
    st.one_of(st.just(0), st.integers(0, 9_000), st.integers(9_000, 60_000), st.integers(60_000, 3_000_000)),
    st.integers(0, 40),
    st.integers(0, 4),
    st.integers(0, 8),
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Draw a stream of up to 60 chunks."""
    time, chunks = 0, []
    for dt, size, tokens, kind in draw(st.lists(chunk, max_size=60)):
        time += dt
        chunks.append((time, size if kind in CONTENT else 0, tokens, kind))
    return Sample(chunks, end_us=time + draw(st.integers(0, 2_000_000)), open_ended=draw(st.booleans()))


@given(st.lists(samples(), min_size=1, max_size=6))
def test_every_statistic_equals_its_definition(batch: list[Sample]) -> None:
    """In any batch, the statistics of each stream equal those of the plain definitions."""
    statistics = describe_all(batch)
    tops, top = statistics.top
    for i, sample in enumerate(batch):
        gaps = gaps_of(sample)
        ordered = sorted(gaps)
        assert figure(statistics, "gaps", i) == len(gaps)
        assert figure(statistics, "gap_sum_us", i) == sum(gaps)
        assert figure(statistics, "gap_max_us", i) == (max(gaps) if gaps else None)
        assert top[tops.starts[i] : tops.ends[i]].tolist() == ordered[::-1][:5]
        for percent in (50, 95, 99):
            expected = ordered[math.ceil(percent * len(gaps) / 100) - 1] if gaps else None
            assert figure(statistics, f"gap_p{percent}_us", i) == expected
        if gaps and sum(gaps):
            halfway = next(gap for k, gap in enumerate(ordered) if 2 * sum(ordered[: k + 1]) >= sum(gaps))
            assert figure(statistics, "gap_twq50_us", i) == halfway
        for threshold in THRESHOLDS_MS:
            over = [gap - threshold * 1000 for gap in gaps if gap >= threshold * 1000]
            assert figure(statistics, f"stalls_{threshold}ms", i) == len(over)
            assert figure(statistics, f"excess_{threshold}ms_us", i) == sum(over)
        contents = [c for c in sample.chunks if c[3] in CONTENT]
        assert figure(statistics, "content_chunks", i) == len(contents)
        assert figure(statistics, "content_bytes", i) == sum(c[1] for c in contents)
        assert figure(statistics, "ttft_us", i) == (contents[0][0] if contents else None)
        texts = [c for c in contents if c[3] == TEXT]
        assert figure(statistics, "ttfo_us", i) == (texts[0][0] if texts else None)
        for rate in (2, 4, 6, 8):
            assert figure(statistics, f"starved_{rate}wps_us", i) == (starved_us(sample, rate) if texts else None)


@given(st.lists(samples(), min_size=1, max_size=4))
def test_the_histogram_counts_every_gap_once(batch: list[Sample]) -> None:
    """Bucket b counts the gaps in [2^(b/4), 2^((b+1)/4)) µs."""
    streams, buckets, counts = describe_all(batch).histogram
    for i, sample in enumerate(batch):
        at = slice(streams.starts[i], streams.ends[i])
        expected: dict[int, int] = {}
        for gap in gaps_of(sample):
            bucket = math.floor(math.log2(max(gap, 1)) * 4)
            expected[bucket] = expected.get(bucket, 0) + 1
        assert dict(zip(buckets[at].tolist(), counts[at].tolist(), strict=True)) == expected


PERCEPTUAL = [
    *(f"stalls_{threshold}ms" for threshold in THRESHOLDS_MS),
    *(f"excess_{threshold}ms_us" for threshold in THRESHOLDS_MS),
    *(f"starved_{rate}wps_us" for rate in (2, 4, 6, 8)),
    *"gaps gap_sum_us gap_max_us gap_open_us gap_p50_us gap_p95_us gap_p99_us gap_twq50_us".split(),
    *"ttft_us ttfo_us jitter_ratio head_burst tail_flush burstiness content_bytes".split(),
]


@given(samples(), st.data())
def test_splitting_a_chunk_changes_no_perceptual_statistic(sample: Sample, data: st.DataObject) -> None:
    """Two halves of a chunk that arrive together are the same to the end user."""
    contents = [i for i, c in enumerate(sample.chunks) if c[3] in CONTENT]
    if not contents:
        return
    at = data.draw(st.sampled_from(contents))
    time, size, tokens, kind = sample.chunks[at]
    part = data.draw(st.integers(0, size))
    halves = [(time, part, tokens, kind), (time, size - part, 0, kind)]
    split = Sample([*sample.chunks[:at], *halves, *sample.chunks[at + 1 :]], sample.end_us, sample.open_ended)
    before, after = describe_one(sample), describe_one(split)
    assert {name: after[name] for name in PERCEPTUAL} == {name: before[name] for name in PERCEPTUAL}


@given(samples(), st.data())
def test_delaying_a_byte_never_improves_what_is_measured_from_the_request(sample: Sample, data: st.DataObject) -> None:
    """TTFT, TTFO and starvation from the start of the request never decrease when all chunks from some point on arrive later."""
    if not sample.chunks:
        return
    at = data.draw(st.integers(0, len(sample.chunks) - 1))
    delay = data.draw(st.integers(1, 500_000))
    # The delayed chunk moves, and later chunks only as far as the order demands.
    moved = [(max(time, sample.chunks[at][0] + delay) if i >= at else time, *rest) for i, (time, *rest) in enumerate(sample.chunks)]
    later = Sample([(t, s, k, c) for t, s, k, c in moved], max(sample.end_us, moved[-1][0]), sample.open_ended)
    before, after = describe_one(sample), describe_one(later)
    for name in ("ttft_us", "ttfo_us"):
        assert (after[name] is None) == (before[name] is None)
        assert before[name] is None or after[name] >= before[name]
    if before["ttfo_us"] is not None:
        for rate in (2, 4, 6, 8):
            name = f"starved_{rate}wps_us"
            assert after["ttfo_us"] + after[name] >= before["ttfo_us"] + before[name]


def test_a_fast_stream_is_not_one_epoch() -> None:
    """Reads 3 ms apart form epochs of two. The gaps between epochs are distances of reads, so p50 is 3 ms."""
    figures = describe_one(Sample([(i * 3_000, 4, 1, TEXT) for i in range(100)]))
    assert (figures["gaps"], figures["gap_p50_us"], figures["gap_max_us"]) == (49, 3_000, 3_000)


def test_ratios_of_a_steady_stream() -> None:
    """With 25 ms per chunk: jitter 1, burstiness −1, head and tail at the middle rate."""
    figures = describe_one(Sample([(400_000 + i * 25_000, 4, 1, TEXT) for i in range(200)]))
    assert figures["jitter_ratio"] == 1
    assert figures["burstiness"] == pytest.approx(-1)
    assert figures["head_burst"] == pytest.approx(9 / 8, rel=0.05)
    assert figures["tail_flush"] == pytest.approx(9 / 8, rel=0.05)
    assert figures["tokens_per_chunk"] == 1 and figures["multi_token_share"] == 0


@given(st.lists(st.integers(8_000, 3_000_000), min_size=7, max_size=130), st.integers(0, 60_000_000))
def test_a_longer_freeze_never_lowers_the_jitter_ratio(gaps: list[int], more_us: int) -> None:
    """The ratio is at least 1, and lengthening the longest gap does not lower it."""

    def ratio(of: list[int]) -> float:
        times = [400_000, *(400_000 + sum(of[: n + 1]) for n in range(len(of)))]
        return float(describe_one(Sample([(time, 4, 1, TEXT) for time in times]))["jitter_ratio"])

    longest = max(gaps)
    before, after = ratio(gaps), ratio([gap + more_us * (n == gaps.index(longest)) for n, gap in enumerate(gaps)])
    assert 1 <= before <= after


def test_a_freeze_of_half_the_stream_is_jitter() -> None:
    """12 of 23 s frozen, otherwise 25 ms a chunk: 480 times the median, where the time-weighted median gave 0.01 times."""
    times = [400_000 + 25_000 * n + (12_000_000 if n >= 40 else 0) for n in range(90)]
    assert describe_one(Sample([(time, 4, 1, TEXT) for time in times]))["jitter_ratio"] == pytest.approx(12_025 / 25)


def test_a_buffered_prefix_is_a_head_burst() -> None:
    """Fifty chunks at once, then a steady stream."""
    burst = [(400_000, 4, 1, TEXT)] * 50 + [(400_000 + i * 25_000, 4, 1, TEXT) for i in range(1, 200)]
    assert describe_one(Sample(burst))["head_burst"] > 5


def test_a_single_burst_has_burstiness_close_to_one() -> None:
    """All gaps except one are 5 ms: A_n of Kim and Jo is close to 1."""
    times = [i * 5_000 for i in range(50)] + [100_000_000 + i * 5_000 for i in range(50)]
    assert describe_one(Sample([(time, 1, 1, TEXT) for time in times]))["burstiness"] > 0.97


def test_too_few_epochs_have_no_ratio() -> None:
    """With fewer than eight epochs, ratios are unknown and counts are known."""
    figures = describe_one(Sample([(i * 300_000, 4, 1, TEXT) for i in range(7)]))
    assert figures["jitter_ratio"] is None and figures["burstiness"] is None and figures["head_burst"] is None
    assert figures["stalls_250ms"] == 6


def test_a_cancelled_stream_has_an_open_gap() -> None:
    """The time from the last content to the cancel is a gap; the same time of a complete stream is not."""
    chunks = [(100_000, 4, 1, TEXT), (125_000, 4, 1, TEXT), (600_000, 0, 0, 5)]
    cancelled = describe_one(Sample(chunks, end_us=1_125_000, open_ended=True))
    assert (cancelled["gap_open_us"], cancelled["gap_max_us"], cancelled["gaps"]) == (1_000_000, 1_000_000, 2)
    complete = describe_one(Sample(chunks, end_us=1_125_000))
    assert (complete["gap_open_us"], complete["gap_max_us"]) == (None, 25_000)


def test_tokens_are_taken_from_the_usage_where_chunks_have_none() -> None:
    """Without a token column, the mean is computed from the reported total and the share of multi-token chunks is unknown."""
    blob = pack([0, 10_000], [4, 4])
    timelines, _ = decode([blob], [read_head(blob)])
    statistics = describe(timelines, np.array([10_000]), np.array([False]), np.array([6.0]))
    assert figure(statistics, "tokens_per_chunk") == 3
    assert figure(statistics, "multi_token_share") is None


def test_an_empty_batch() -> None:
    """It has empty columns."""
    assert all(len(column) == 0 for column in describe_all([]).columns.values())
