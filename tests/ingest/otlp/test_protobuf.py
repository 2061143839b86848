"""The wire format: fields are found where protobuf puts them, and malformed bytes are rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.protobuf import Malformed, message, read_fields, read_varint


def test_fields_are_found_with_their_positions() -> None:
    """Messages, texts and bytes have their number; other fields have -1. Concatenated, the fields are the message."""
    span = Span(trace_id=b"t" * 16, name="chat", kind=Span.SPAN_KIND_CLIENT, start_time_unix_nano=2**63, flags=7)
    span.attributes.add(key="k").value.int_value = 300
    content = span.SerializeToString()
    found = list(read_fields(content, 0, len(content)))
    assert {number: content[start:end] for number, start, end, _ in found if number > 0} == {
        1: b"t" * 16,
        5: b"chat",
        9: KeyValue(key="k", value=AnyValue(int_value=300)).SerializeToString(),
    }
    assert sum(number == -1 for number, *_ in found) == 3
    assert b"".join(content[field_start:end] for _, _, end, field_start in found) == content


@given(st.integers(1, 15), st.binary(max_size=300))
def test_a_message_field_is_read_back(number: int, content: bytes) -> None:
    """For any content, with a length of one byte or more."""
    field = message(number, content)
    ((found, start, end, at),) = read_fields(field, 0, len(field))
    assert (found, field[start:end], at) == (number, content, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x08",
        b"\x08\xff\xff",
        b"\x0d\x00\x00\x00",
        b"\x09" + bytes(7),
        b"\x0b",
        b"\x02\x01a",
        b"\x80" * 11,
    ],
    ids=["no length", "too short", "no varint", "open varint", "short fixed32", "short fixed64", "group", "number 0", "endless varint"],
)
def test_malformed_bytes_are_rejected(content: bytes) -> None:
    """The error names the position."""
    with pytest.raises(Malformed, match="at byte 0|at byte 1"):
        list(read_fields(content, 0, len(content)))


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_malformed(content: bytes) -> None:
    """No other exception is raised, and no field reaches beyond the end."""
    try:
        assert all(start <= end <= len(content) for _, start, end, _ in read_fields(content, 0, len(content)))
    except Malformed:
        pass


def test_a_varint_does_not_read_beyond_its_end() -> None:
    """The limit is the end of the enclosing message."""
    assert read_varint(b"\xac\x02", 0, 2) == (300, 2)
    with pytest.raises(Malformed):
        read_varint(b"\xac\x02", 0, 1)
