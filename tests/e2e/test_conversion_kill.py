"""`legato serve` converts large bodies in a process apart: its end loses nothing, and it ends with `legato serve`."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from bench.crash_pipelines.serve import children
from helpers.builders.spans import many_spans
from helpers.servers.serving import Served, serve_process
from helpers.servers.waiting import until

SPANS = 6_000


def large_body(seed: int) -> bytes:
    """Return a body over 4 MiB: its long attributes are not stored."""
    content = many_spans(SPANS, {"pad": "x" * 900}, random.Random(seed))
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
    """Killed while it waits and, a few times, at some moment of a conversion: each row of each acknowledged body is stored once."""
    bodies = [large_body(seed) for seed in range(5)]
    with serve_process(tmp_path / "store") as served, ThreadPoolExecutor(1) as pool:
        assert not conversions(served) and post(served, bodies[0]) == 200
        kill(conversions(served))
        statuses = [200, post(served, bodies[1])]
        for body, pause_s in zip(bodies[2:], (0.0, 0.1, 0.3), strict=True):
            reply = pool.submit(post, served, body)
            time.sleep(pause_s)
            kill(conversions(served))
            statuses.append(reply.result())
        assert statuses[:2] == [200, 200] and {*statuses} <= {200, 503}
        refused = [body for body, status in zip(bodies, statuses, strict=True) if status == 503]
        assert [post(served, body) for body in refused] == [200] * len(refused)
        count = httpx.post(served.read, content="SELECT count(), uniqExact(trace_id) FROM streams", timeout=60).text.split()
        assert count == [str(SPANS * len(bodies))] * 2
        assert post(served, bodies[0]) == 200
        (pid,) = conversions(served)
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait()
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists())


def test_a_process_that_hangs_does_not_keep_the_server_from_its_end(tmp_path: pathlib.Path) -> None:
    """Its body gets 503 when the grace of the other requests ends."""
    with serve_process(tmp_path / "store") as served, ThreadPoolExecutor(1) as pool:
        assert post(served, large_body(1)) == 200
        (pid,) = conversions(served)
        os.kill(pid, signal.SIGSTOP)
        reply = pool.submit(post, served, large_body(2))
        # Until the body has arrived.
        time.sleep(3)
        served.process.terminate()
        assert served.process.wait(30) == 0 and reply.result() == 503
        assert not pathlib.Path(f"/proc/{pid}").exists()
