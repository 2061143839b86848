"""Variable-length integers: every number of 64 bits is read, and bytes that are no number are an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.varint import read_varint


def written(number: int) -> bytes:
    """The number in 7 bits a byte."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@given(number=st.integers(0, 2**64 - 1), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_a_number_is_read_at_its_place(number: int, before: bytes, after: bytes) -> None:
    """With the position behind it."""
    content = before + written(number) + after
    assert read_varint(content, len(before), len(content)) == (number, len(content) - len(after))


@pytest.mark.parametrize(("content", "end"), [(b"", 0), (b"\x80", 1), (b"\x80\x01", 1), (b"\x80" * 10 + b"\x01", 11)])
def test_a_number_that_does_not_end_is_an_error(content: bytes, end: int) -> None:
    """Cut off, behind the limit, or of more than 10 bytes."""
    with pytest.raises(ValueError, match="does not end"):
        read_varint(content, 0, end)
