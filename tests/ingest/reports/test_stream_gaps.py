"""Tests of reads and stalls of one recording from its stored arrays."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.reports.stream_gaps import Read, Stall, content_reads, stalls_of


def row(dts_ms: list[float], **more: Any) -> dict[str, Any]:
    """A row of text chunks with these distances, three bytes each."""
    n = len(dts_ms)
    return {
        "dt_us": [round(dt * 1_000) for dt in dts_ms],
        "chunk_kind": [1] * n,
        "chunk_bytes": [3] * n,
        "chunk_tokens": [],
        "chunk_hold_64us": [],
        "gap_open_us": None,
        **more,
    }


def test_simultaneous_chunks_are_one_read() -> None:
    """Their bytes add up; chunks without content are no reads."""
    made = row([100, 0, 50, 50, 0], chunk_kind=[0, 1, 1, 5, 2])
    assert content_reads(made) == [Read(100_000, 1, 1, 3), Read(150_000, 2, 1, 3), Read(200_000, 4, 1, 3)]
    assert content_reads(row([100, 0, 0])) == [Read(100_000, 0, 3, 9)]
    assert content_reads(row([100, 0], chunk_bytes=[])) == [Read(100_000, 0, 2, None)]
    assert content_reads(row([])) == []


def test_a_stall_has_the_read_that_ended_it() -> None:
    """Start, length, and the chunks and bytes of the read."""
    made = row([100, 249.999, 250, 0, 20])
    assert stalls_of(made, content_reads(made)) == [Stall(349_999, 250_000, False, 2, 6, None)]


def test_a_keep_alive_does_not_end_a_stall() -> None:
    """A gap is measured from content to content."""
    made = row([100, 200, 200], chunk_kind=[1, 5, 1])
    assert stalls_of(made, content_reads(made)) == [Stall(100_000, 400_000, False, 1, 3, None)]


def test_the_open_gap_is_the_last_stall() -> None:
    """No read ended it."""
    made = row([100, 20], gap_open_us=900_000)
    assert stalls_of(made, content_reads(made)) == [Stall(120_000, 900_000, True, None, None, None)]
    short = row([100, 20], gap_open_us=249_999)
    assert stalls_of(short, content_reads(short)) == []


def test_holds_of_the_chunks_before_the_end_of_the_stall() -> None:
    """The chunks of the read before it and later chunks without content; never more than the gap."""
    made = row([100, 0, 200, 200, 20], chunk_kind=[1, 1, 5, 1, 1], chunk_hold_64us=[100, 200, 300, 9_999, 1])
    assert stalls_of(made, content_reads(made)) == [Stall(100_000, 400_000, False, 1, 3, 600 * 64)]
    long = row([100, 300], chunk_hold_64us=[1_000_000, 0])
    assert stalls_of(long, content_reads(long))[0].held_us == 300_000


@given(st.lists(st.integers(0, 2_000_000), max_size=40), st.data())
def test_stalls_and_reads_add_up(dts: list[int], data: st.DataObject) -> None:
    """Every chunk of content is in one read, times ascend, and each stall lies between two of them."""
    kinds = data.draw(st.lists(st.integers(0, 7), min_size=len(dts), max_size=len(dts)))
    made = {**row([]), "dt_us": dts, "chunk_kind": kinds, "chunk_bytes": [2] * len(dts)}
    reads = content_reads(made)
    assert sum(read.chunks for read in reads) == sum(kind in (1, 2, 3) for kind in kinds)
    assert all(a.at_us < b.at_us for a, b in zip(reads, reads[1:], strict=False))
    distances = [b.at_us - a.at_us for a, b in zip(reads, reads[1:], strict=False)]
    assert [stall.length_us for stall in stalls_of(made, reads)] == [gap for gap in distances if gap >= 250_000]
