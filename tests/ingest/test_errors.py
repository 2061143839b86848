"""Errors that are handled keep nothing: the body of a refused request is freed with its answer, not when the garbage collector runs."""

from __future__ import annotations

import asyncio
import gzip
import json
import pathlib
import time
import zlib
from typing import cast

import grpc
import httpx
import pytest
import zstandard

from helpers.platform.allocations import keeping_less_than
from helpers.repo.repository import ROOT
from helpers.servers.otlp import PROTOBUF, StubCommitter
from helpers.servers.otlp_grpc import grpc_over
from helpers.servers.reading import open_store, reading
from helpers.servers.serving import served
from legato_ingest.dashboards.files import load as load_boards
from legato_ingest.errors import BadRequest, Overloaded, StoreUnavailable, release
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import structure
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import POINTS, SPANS
from legato_ingest.query.reads import Reads
from legato_ingest.settings import load
from legato_ingest.web.app import create_app
from legato_ingest.web.panel_queries import Boards
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.receiver import Call, Counters, Receiver

SIZE, TIMES = 8 * 2**20, 5
GARBAGE = b"\xff" * SIZE
JSON = "application/json"


def test_an_error_keeps_no_frame_of_those_before_it() -> None:
    """Also where it was raised from another one."""

    def fail() -> None:
        try:
            zlib.decompress(b"?")
        except zlib.error:
            raise BadRequest("not compressed") from None

    with pytest.raises(BadRequest) as caught:
        fail()
    error = caught.value
    assert error.__traceback__ is not None and error.__context__ is not None and error.__context__.__traceback__ is not None
    release(error)
    assert error.__traceback__ is None and error.__context__.__traceback__ is None


CASES = {
    "malformed": (GARBAGE, "", PROTOBUF, 400),
    "malformed, gzip": (gzip.compress(GARBAGE), "gzip", PROTOBUF, 400),
    "malformed, zstd": (zstandard.compress(GARBAGE), "zstd", PROTOBUF, 400),
    "not complete": (gzip.compress(bytes(SIZE))[:-5], "gzip", PROTOBUF, 400),
    "too many items": (b"\x0a\x00" * 10_000 + message(15, GARBAGE[: SIZE // 4]), "", PROTOBUF, 413),
    "no JSON": (b"[" * SIZE, "", JSON, 400),
    "too large": (gzip.compress(bytes(2 * SIZE)), "gzip", PROTOBUF, 413),
    "a malformed metric": (message(1, message(2, message(2, b"\x2a\x7f"))) + message(15, GARBAGE[: SIZE // 2]), "", PROTOBUF, 200),
    "a large item": (message(1, message(2, message(2, message(15, GARBAGE)))), "", PROTOBUF, 200),
    "full": (message(15, bytes(SIZE // 2)), "", PROTOBUF, 429),
    "away": (message(15, bytes(SIZE // 2)), "", PROTOBUF, 503),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refused_body_is_freed_with_its_answer(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Whatever it, or an item of it, is refused for. Some hundred bodies of 64 KB, 64 MiB after decompression, took all memory."""
    monkeypatch.setattr(structure, "ITEMS_MAX", 1_000)
    content, encoding, content_type, status = CASES[case]
    raises = {429: Overloaded("full"), 503: StoreUnavailable("away")}.get(status)
    stub, signal = StubCommitter(Receipt(1, ["size"]), raises=raises), POINTS if "metric" in case else SPANS

    async def answer(receiver: Receiver) -> int:
        async def read(counters: Counters) -> bytes:
            # Each body is a new object.
            return bytes(bytearray(content))

        return (await receiver.answer(Call(signal, read, content_type=content_type, encoding=encoding))).status

    async def main() -> None:
        receiver = Receiver(load(body_bytes_max=SIZE + 100), cast(Committer, stub), Metrics())
        assert await answer(receiver) == status
        with keeping_less_than(SIZE // 20):
            assert [await answer(receiver) for _ in range(TIMES)] == [status] * TIMES
            # The event loop keeps the last result of a thread until its next turn, and the thread its arguments for a moment.
            await asyncio.sleep(0.1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "is_accepted"), [(GARBAGE, False), (message(15, GARBAGE[: SIZE // 2]), True)], ids=["refused", "taken"]
)
def test_a_message_over_grpc_is_freed_with_its_answer(content: bytes, is_accepted: bool) -> None:
    """A call that read its message by the iterator of gRPC kept the message in a cycle, also one that was accepted."""
    with grpc_over(StubCommitter(Receipt()), body_bytes_max=2 * SIZE) as endpoint:

        def call() -> bool:
            try:
                endpoint.export(content)
            except grpc.RpcError:
                return False
            return True

        assert call() == is_accepted
        with keeping_less_than(SIZE):
            assert {call() for _ in range(TIMES)} == {is_accepted}
            time.sleep(0.1)


STATEMENTS = {
    "denied": "SELECT '{}' FROM file('/etc/passwd')",
    "malformed": "SELECT '{}' FROM FROM",
    "a write": "INSERT INTO streams VALUES ('{}')",
}


def status_of(client: httpx.Client, address: str, body: bytes) -> int:
    """Return the status of a request, of which the client keeps nothing."""
    with client.stream("POST", address, content=body, headers={"content-type": "application/json"}) as response:
        for _ in response.iter_raw():
            pass
        return response.status_code


def test_a_refused_query_is_freed_with_its_answer(tmp_path: pathlib.Path) -> None:
    """At the read endpoint and at the web page's."""
    text = "x" * 200_000
    with open_store(tmp_path / "store") as store, reading(store) as url, httpx.Client(timeout=30) as client:
        metrics = Metrics()
        app = create_app(load(), Reads(load(), store, metrics), metrics, Boards(load_boards(ROOT / "dashboards")))
        with served(app) as web:
            for statement in STATEMENTS.values():
                sql = statement.format(text)
                for address, body in ((url, sql.encode()), (f"{web}/api/sql", json.dumps({"sql": sql}).encode())):
                    expected = status_of(client, address, body)
                    assert expected in (400, 403, 404)
                    # The last result of each thread stays until its next one.
                    with keeping_less_than(5 * len(text)):
                        assert {status_of(client, address, body) for _ in range(10)} == {expected}
