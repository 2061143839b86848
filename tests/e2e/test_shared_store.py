"""Several `legato serve` on one ClickHouse server: no row counts twice, one of them works for all, and the next goes on when it dies."""

from __future__ import annotations

import pathlib
import random
import threading
from contextlib import ExitStack

import httpx

from helpers.builders.spans import native_span, request
from helpers.servers.clickhouse import clickhouse
from helpers.servers.ports import free_port
from helpers.servers.reading import stream
from helpers.servers.serving import legato, serving
from helpers.servers.waiting import until

HEADERS = {"content-type": "application/x-protobuf"}
BODIES, STREAMS = 60, 20
FAST = {"LEGATO_ATTRIBUTE_EVERY_S": "1", "LEGATO_ATTRIBUTE_SETTLE_S": "1", "LEGATO_ROLLUP_EVERY_S": "1"}


def body_of(rng: random.Random, streams: int = STREAMS) -> bytes:
    """Streams of a client, each with one stall that the client alone can judge."""
    body = request()
    for _ in range(streams):
        made = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9)
        native_span(body, made["attributes"], duration_ns=made["duration_ns"], rng=rng)
    return bytes(body.SerializeToString())


def test_several_write_and_one_works(tmp_path: pathlib.Path) -> None:
    """The same bodies to both at once, half of them again: each stream counts once, also in minutes; then the one that works is killed."""
    rng = random.Random(3)
    bodies = [body_of(rng) for _ in range(BODIES)]
    with clickhouse(tmp_path) as server, ExitStack() as stack:
        ports = [(free_port(), free_port()) for _ in range(2)]
        environs = [{**server.settings, **FAST, "LEGATO_OTLP_PORT": str(otlp), "LEGATO_READ_PORT": str(read)} for otlp, read in ports]
        processes = [stack.enter_context(serving(environ)) for environ in environs]

        def ask(sql: str, of: int = 0) -> list[list[str]]:
            reply = httpx.post(f"http://127.0.0.1:{ports[of][1]}/", content=sql, timeout=30)
            assert reply.status_code == 200, reply.text
            return [line.split("\t") for line in reply.text.splitlines()]

        def send(of: int, chosen: list[bytes]) -> None:
            for content in chosen:
                reply = httpx.post(f"http://127.0.0.1:{ports[of][0]}/v1/traces", content=content, headers=HEADERS, timeout=60)
                assert reply.status_code == 200, reply.text

        senders = [threading.Thread(target=send, args=(of, bodies + bodies[:: 2 + of])) for of in range(2)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        for of in range(2):
            assert ask("SELECT count(), uniqExact(trace_id, span_id) FROM streams", of) == [[str(BODIES * STREAMS)] * 2]

        def counted(streams: int, of: int = 0) -> bool:
            minutes = ask("SELECT sum(streams) FROM stream_minutes FINAL", of)
            verdicts = ask("SELECT count(), uniqExact(trace_id, span_id, gap_start_us) FROM verdicts FINAL", of)
            return minutes == [[str(streams)]] and verdicts == [[str(streams)] * 2]

        until(lambda: counted(BODIES * STREAMS), 60)
        acting = "SELECT holder FROM leases FINAL WHERE acting AND seen_at > now64(3) - INTERVAL 30 SECOND"
        assert len(ask(acting)) == 1
        assert ask("SELECT count() FROM writers FINAL") == [["2"]]

        # The one that works says so by its runs: kill it, and the other goes on from where it was.
        lags = [httpx.get(f"http://127.0.0.1:{otlp}/metrics").text for otlp, _ in ports]
        working = next(of for of in range(2) if "legato_sweep_seconds_count 0.0" not in lags[of])
        left = 1 - working
        assert "legato_sweep_seconds_count 0.0" in lags[left]
        processes[working].kill()
        processes[working].wait()
        send(left, [body_of(rng)])
        until(lambda: counted((BODIES + 1) * STREAMS, left), 90)
        assert len({holder for (holder,) in ask(acting, left)}) == 1
        # A command asks the server itself: there is no lock to ask for.
        status = legato("schema", "status", "--json", environ=environs[left])
        assert status.returncode == 0 and '"applied": false' not in status.stdout
        again = legato("rollup", "--since", "1h", environ=environs[left])
        assert again.returncode == 0, again.stderr
        assert counted((BODIES + 1) * STREAMS, left)
