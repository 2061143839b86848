"""Bodies over HTTP: content types, decompression within a limit, incomplete streams, and error replies."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import pytest
import zstandard
from google.rpc.status_pb2 import Status

from helpers.builders.worst_bodies import ZSTD_BOMB
from helpers.platform.allocations import peak_bytes
from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp.http import JSON, PROTOBUF, check_type, decompress, encoded, error_message, reply_type

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_body_is_decompressed(encoding: str) -> None:
    """For each encoding, with several concatenated streams, and for an empty body."""
    compress = COMPRESS[encoding]
    content = bytes(range(256)) * 5_000
    assert decompress(encoding, compress(content), len(content)) == content
    assert decompress(f" {encoding.upper()} ", compress(b"a") + compress(b"bc"), 100) == b"abc"
    assert decompress(encoding, compress(b""), 100) == b""


@pytest.mark.parametrize("encoding", COMPRESS)
def test_the_limit_holds_before_and_after_decompression(encoding: str) -> None:
    """A body of exactly the limit is accepted, one byte more is not."""
    content = COMPRESS[encoding](bytes(100_000))
    assert len(decompress(encoding, content, 100_000)) == 100_000
    with pytest.raises(TooLarge):
        decompress(encoding, content, 99_999)
    with pytest.raises(TooLarge):
        decompress(encoding, bytes(101), 100)


def test_a_small_zstd_body_of_blocks_that_repeat_a_byte_takes_little_memory() -> None:
    """Each block of 4 bytes stands for 128 KiB (RFC 8878, section 3.1.1.2.2): a body of 1 KB for 33 MB."""

    def refuse() -> None:
        with pytest.raises(TooLarge):
            decompress("zstd", ZSTD_BOMB, 2**17)

    assert len(ZSTD_BOMB) < 1_030 and len(decompress("zstd", ZSTD_BOMB, 2**26)) == 254 * 2**17
    assert peak_bytes(refuse) < 2**20


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_very_many_parts_is_refused(encoding: str) -> None:
    """Members or frames: the format allows any number, and empty ones of some bytes cost as much time as others."""
    part = COMPRESS[encoding](b"x")
    assert decompress(encoding, 1_024 * part, 100_000) == 1_024 * b"x"
    with pytest.raises(TooLarge, match="more than 1024 parts"):
        decompress(encoding, 1_025 * part, 100_000)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_an_incomplete_or_foreign_body_is_rejected(encoding: str) -> None:
    """Truncated anywhere, followed by other bytes, or not compressed at all."""
    content = COMPRESS[encoding](b"abc" * 100)
    for bad in (*(content[:cut] for cut in range(1, len(content))), content + b"x", b"abc" * 100):
        with pytest.raises(BadRequest) as error:
            decompress(encoding, bad, 10_000)
        assert error.value.status == 400


def test_unknown_types_and_encodings_are_415() -> None:
    """The reply quotes them only up to a limit."""
    for known in (PROTOBUF, JSON):
        assert check_type(known) == check_type(f" {known.upper()} ; charset=utf-8") == reply_type(known) == known
    assert reply_type("text/html") == reply_type("") == JSON
    for call in (lambda: check_type("application/jsonl"), lambda: check_type("x" * 5_000), lambda: decompress("br" * 500, b"", 10)):
        with pytest.raises(BadRequest) as error:
            call()
        assert error.value.status == 415 and len(str(error.value)) < 200


@pytest.mark.parametrize(("status", "code"), [(400, 3), (401, 16), (403, 7), (413, 8), (415, 3), (429, 8), (503, 14)])
def test_an_error_reply_is_a_status(status: int, code: int) -> None:
    """With the code of gRPC that corresponds to the HTTP status, in both encodings."""
    found = error_message(status, "message")
    assert Status.FromString(encoded(found, PROTOBUF)) == Status(code=code, message="message")
    assert json.loads(encoded(found, JSON)) == {"code": code, "message": "message"}
