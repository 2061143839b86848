"""`legato serve` converts large bodies in a process apart: its end loses nothing, and it ends with `legato serve`."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from bench.crash_pipelines.serve import children
from helpers.builders.spans import native_span, request
from helpers.servers.serving import Served, serve_process
from helpers.servers.waiting import until

SPANS = 6_000


def body_of_5_mib() -> bytes:
    """Return a large body: its long attributes are not stored."""
    body = request()
    for _ in range(SPANS):
        native_span(body, {"pad": "x" * 900})
    content = bytes(body.SerializeToString())
    assert len(content) > 5 * 2**20
    return content


def conversions(served: Served) -> list[int]:
    """Return the processes that convert, or wait for a body."""
    return children(served.process.pid, b"conversion_process")


def kill(pids: list[int]) -> None:
    """End processes."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def post(served: Served, content: bytes) -> int:
    """Send a body and return the status."""
    headers = {"content-type": "application/x-protobuf"}
    return httpx.post(f"{served.otlp}/v1/traces", content=content, headers=headers, timeout=60).status_code


def test_the_end_of_the_process_that_converts_loses_nothing(tmp_path: pathlib.Path) -> None:
    """Killed while it waits and, a few times, at some moment of a conversion: each acknowledged row is stored once."""
    content = body_of_5_mib()
    with serve_process(tmp_path / "store") as served, ThreadPoolExecutor(1) as pool:
        assert not conversions(served) and post(served, content) == 200
        kill(conversions(served))
        assert post(served, content) == 200
        for pause_s in (0.0, 0.1, 0.3):
            reply = pool.submit(post, served, content)
            time.sleep(pause_s)
            kill(conversions(served))
            assert reply.result() in (200, 503)
        assert post(served, content) == 200
        count = httpx.post(served.read, content="SELECT count(), uniqExact(trace_id) FROM streams", timeout=60).text.split()
        assert count == [str(SPANS)] * 2
        (pid,) = conversions(served)
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait()
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
