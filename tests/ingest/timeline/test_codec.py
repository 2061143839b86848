"""The decoder of packed timelines, beyond the vectors in schema/: several timelines at once, missing columns, undecodable ones."""

from __future__ import annotations

import pytest

from legato._timeline import pack
from legato_ingest.timeline.codec import CHUNKS_MAX, IDLE, QUEUED, TimelineError, decode, decode_columns, read_head

# One chunk, and an exception for the chunk after it.
BEYOND_THE_END = bytes.fromhex("010102000000010d00000000010000000100020005000000")
# Two chunks, and two exceptions for the second of them: columns are (id, length), then width, base, exceptions, positions, values.
SAME_POSITION = bytes.fromhex("01010200000001" + "13000000" + "00" + "01000000" + "0200" + "01000100" + "0500000006000000")


def test_columns_of_all_timelines_are_concatenated() -> None:
    """A column that one of them lacks is 0 there, and the flags mark those that have it; kinds are text by default."""
    blobs = [pack([5, 9], [1, 2], None, [1, 7]), pack([]), pack([3], None, [4], None, [10])]
    found, bad = decode(blobs, [read_head(blob) for blob in blobs])
    assert not bad and found.streams.lengths.tolist() == [2, 0, 1]
    assert found.dt_us.tolist() == [5, 4, 3] and found.kinds.tolist() == [1, 7, 1]
    assert found.sizes.tolist() == [1, 2, 0] and found.has_sizes.tolist() == [True, False, False]
    assert found.tokens.tolist() == [0, 0, 4] and found.has_tokens.tolist() == [False, False, True]
    assert found.holds.tolist() == [0, 0, 10] and found.sockets == {}


def test_socket_columns_are_decoded_when_one_timeline_has_them() -> None:
    """The others have zeros."""
    blobs = [pack([1, 2]), pack([1, 2], sockets={QUEUED: [0, 7], IDLE: [3, 0]})]
    found, _ = decode(blobs, [read_head(blob) for blob in blobs])
    assert found.sockets[QUEUED].tolist() == [0, 0, 0, 7] and found.sockets[IDLE].tolist() == [0, 0, 3, 0]


def test_an_undecodable_timeline_is_reported_by_index() -> None:
    """Its neighbours are decoded as if it were absent."""
    good = pack([5, 9])
    blobs = [good, BEYOND_THE_END, good]
    rows, columns, bad = decode_columns(blobs, [read_head(blob) for blob in blobs], frozenset((1,)))
    assert bad == {1: "exceptions"}
    assert [columns[1][rows.starts[i] : rows.ends[i]].tolist() for i in (0, 2)] == [[5, 4], [5, 4]]


def test_positions_of_exceptions_must_increase() -> None:
    """Two exceptions for one chunk make a timeline undecodable: its values would depend on the order of writing."""
    assert decode([SAME_POSITION], [read_head(SAME_POSITION)])[1] == {0: "exceptions"}


@pytest.mark.parametrize("chunks", [CHUNKS_MAX + 1, 2**32 - 1])
def test_a_head_cannot_declare_more_chunks_than_allowed(chunks: int) -> None:
    """It is rejected before memory is allocated."""
    with pytest.raises(TimelineError, match="chunks"):
        read_head(b"\x01\x00" + chunks.to_bytes(4, "little"))
