"""Several instances of `legato serve` on one ClickHouse server: no row counts twice, they divide the attribution, another takes over."""

from __future__ import annotations

import pathlib
import random
import threading
from contextlib import ExitStack

import httpx

from helpers.builders.spans import any_value, native_span, request, scope_of
from helpers.servers.clickhouse import clickhouse
from helpers.servers.ports import free_port
from helpers.servers.reading import stream
from helpers.servers.serving import legato, serving
from helpers.servers.waiting import until

HEADERS = {"content-type": "application/x-protobuf"}
BODIES, STREAMS, PAIRS, MORE = 24, 20, 30, 4
OTHERS = "(service_name != 'pairs')"
PARTS = "SELECT uniqExact(shards) FROM attribution_runs WHERE bitCount(shards) = 32"
FAST = {"LEGATO_ATTRIBUTE_EVERY_S": "3", "LEGATO_ATTRIBUTE_GRACE_S": "1", "LEGATO_ROLLUP_EVERY_S": "3"}


def body_of(rng: random.Random, streams: int = STREAMS) -> bytes:
    """A request of client streams; each has one stall that can be judged from the client's span alone."""
    body = request()
    for _ in range(streams):
        made = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9)
        native_span(body, made["attributes"], duration_ns=made["duration_ns"], rng=rng)
    return bytes(body.SerializeToString())


def pair_of(rng: random.Random) -> tuple[bytes, bytes]:
    """Two requests with rows of one response: Legato's, and that of a library that sends a summary."""
    trace, response = rng.randbytes(16), f"chatcmpl-{rng.randrange(10**9)}"
    own = request({"service.name": "pairs"})
    span = native_span(own, {"gen_ai.response.id": response, "gen_ai.request.model": "m"}, trace_id=trace, rng=rng)
    other = request({"service.name": "pairs"}, {"x": 1})
    scope_of(other).scope.name = "openlit.instrumentation.openai"
    copy = scope_of(other).spans.add(trace_id=trace, span_id=rng.randbytes(8), name="chat m", kind=span.kind)
    copy.start_time_unix_nano, copy.end_time_unix_nano = span.start_time_unix_nano, span.end_time_unix_nano
    for key, value in {"gen_ai.request.stream": True, "gen_ai.response.id": response, "gen_ai.request.model": "m"}.items():
        copy.attributes.add(key=key, value=any_value(value))
    return own.SerializeToString(), other.SerializeToString()


def metric(port: int, name: str) -> float:
    """The value of a metric without labels."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def test_several_instances_write_and_divide_the_work(tmp_path: pathlib.Path) -> None:
    """Both instances get the same bodies, some of them twice: each stream counts once, also in rollups. Then the active one is killed."""
    rng = random.Random(3)
    bodies = [body_of(rng) for _ in range(BODIES)]
    with clickhouse(tmp_path / "server", migrated=True) as server, ExitStack() as stack:
        ports = [(free_port(), free_port()) for _ in range(2)]
        environs = [{**server.settings, **FAST, "LEGATO_OTLP_PORT": str(otlp), "LEGATO_READ_PORT": str(read)} for otlp, read in ports]
        processes = [stack.enter_context(serving(environ)) for environ in environs]

        def query(sql: str, of: int = 0) -> list[list[str]]:
            reply = httpx.post(f"http://127.0.0.1:{ports[of][1]}/", content=sql, timeout=30)
            assert reply.status_code == 200, reply.text
            return [line.split("\t") for line in reply.text.splitlines()]

        def send(of: int, chosen: list[bytes]) -> None:
            for content in chosen:
                reply = httpx.post(f"http://127.0.0.1:{ports[of][0]}/v1/traces", content=content, headers=HEADERS, timeout=60)
                assert reply.status_code == 200, reply.text

        # Two rows of each response, one of Legato's and one of another library, at both instances at the same moment.
        pairs = [pair_of(rng) for _ in range(PAIRS)]
        for pair in pairs:
            both = [threading.Thread(target=send, args=(of, [pair[of]])) for of in range(2)]
            for one in both:
                one.start()
            for one in both:
                one.join()
        responses = f"SELECT count() FROM streams WHERE NOT {OTHERS}"

        senders = [threading.Thread(target=send, args=(of, bodies + bodies[:: 2 + of])) for of in range(2)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        for of in range(2):
            assert query(f"SELECT count(), uniqExact(trace_id, span_id) FROM streams WHERE {OTHERS}", of) == [[str(BODIES * STREAMS)] * 2]

        def counted(streams: int, of: int = 0) -> bool:
            if query(f"SELECT sum(streams) FROM stream_minutes FINAL WHERE {OTHERS}", of) != [[str(streams)]]:
                return False
            verdicts = query("SELECT count(), uniqExact(trace_id, span_id, gap_start_us) FROM verdicts FINAL", of)
            return verdicts == [[str(streams)] * 2]

        until(lambda: counted(BODIES * STREAMS), 60)
        acting = "SELECT holder FROM leases FINAL WHERE lease = '{}' AND acting AND seen_at > now64(3) - INTERVAL 30 SECOND"
        assert len(query(acting.format("work"))) == 1 and len(query(acting.format("attribution"))) == 2
        assert query("SELECT count() FROM writers FINAL") == [["2"]]

        until(lambda: query(responses) == [[str(PAIRS)]], 60)

        # Both judge, and the rollups of the one that holds the lease have the verdicts of both.
        until(lambda: query(PARTS) == [["2"]], 60)
        send(0, [body_of(rng) for _ in range(MORE)])
        until(lambda: counted((BODIES + MORE) * STREAMS), 60)
        until(lambda: query("SELECT sum(stalls) FROM stall_minutes FINAL") == [[str((BODIES + MORE) * STREAMS)]], 60)
        assert all(metric(port, "legato_verdicts_total") > 0 for port, _ in ports)
        active = next(of for of in range(2) if metric(ports[of][0], "legato_rolled_minutes_total"))
        standby = 1 - active
        assert metric(ports[standby][0], "legato_rolled_minutes_total") == 0

        # After it is killed, the other one continues its work.
        processes[active].kill()
        processes[active].wait()
        send(standby, [body_of(rng)])
        until(lambda: counted((BODIES + MORE + 1) * STREAMS, standby), 90)
        assert len(query(acting.format("work"), standby)) == len(query(acting.format("attribution"), standby)) == 1
        # Commands query the ClickHouse server directly: a shared store has no lock file.
        status = legato("schema", "status", "--json", environ=environs[standby])
        assert status.returncode == 0 and '"applied": false' not in status.stdout
        again = legato("rollup", "--since", "1h", environ=environs[standby])
        assert again.returncode == 0, again.stderr
        assert counted((BODIES + MORE + 1) * STREAMS, standby)
