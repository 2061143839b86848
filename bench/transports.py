"""Throughput of `legato serve` for the same spans over HTTP in protobuf, HTTP in JSON, and gRPC, and for foreign spans with span events.

    python bench/transports.py [--streams 10000] [--chunks 200] [--core 0] [--rounds 3]

The bench runs the command `legato serve` with an embedded store in a new folder, pinned to one core; the sender has the others. Each round
sends different spans of equal size over each protocol, in bodies of 500 streams and eight requests at a time. Foreign spans are those of an
instrumentation that adds an event a chunk, over HTTP in protobuf, in bodies of 100 streams. All bodies are made before.
Last line: one JSON object with `chunks_per_s_` and `bytes_per_chunk_` (medians) of `protobuf`, `json`, `grpc`, `span_events`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import grpc
import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, median  # noqa: E402
from bench.ingest import SENDERS, STREAMS_A_BODY, body, query, timelines  # noqa: E402
from helpers.builders.json_otlp import json_of  # noqa: E402
from helpers.servers.ports import free_port  # noqa: E402
from helpers.servers.serving import serve_process  # noqa: E402

FOREIGN_A_BODY = 100
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def foreign_body(streams: int, chunks: int, rng: random.Random) -> bytes:
    """Return a request with an event for each chunk of this many streams, which started within the last 70 s."""
    out = ExportTraceServiceRequest()
    scope = out.resource_spans.add().scope_spans.add()
    scope.scope.name = "opentelemetry.instrumentation.openai.v1"
    now = time.time_ns()
    for _ in range(streams):
        start = now - 70_000_000_000 + rng.randrange(40_000_000_000)
        ids = {"trace_id": rng.randbytes(16), "span_id": rng.randbytes(8)}
        span = scope.spans.add(**ids, name="openai.chat", kind=3, start_time_unix_nano=start)
        for key, value in (("gen_ai.request.model", "m"), ("gen_ai.response.id", f"chatcmpl-{rng.randbytes(12).hex()}")):
            span.attributes.add(key=key).value.string_value = value
        span.attributes.add(key="gen_ai.is_streaming").value.bool_value = True
        at = start + 400_000_000
        for _ in range(chunks):
            at += max(0, int(rng.gauss(25_000_000, 3_000_000)))
            span.events.add(name="gen_ai.content.completion.chunk", time_unix_nano=at)
        span.end_time_unix_nano = at
    content: bytes = out.SerializeToString()
    return content


def fed(send: Callable[[bytes], Any], bodies: list[bytes]) -> float:
    """Send all bodies and return the seconds from the first request to the last acknowledgement."""
    with concurrent.futures.ThreadPoolExecutor(SENDERS) as pool:
        started = time.perf_counter()
        list(pool.map(send, bodies))
        return time.perf_counter() - started


def main() -> None:
    """Run all rounds and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--streams", 10_000), ("--chunks", 200), ("--core", 0), ("--rounds", 3)):
        options.add_argument(name, type=int, default=default)
    given = options.parse_args()
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {given.core} or {given.core})
    rng, port = random.Random(1), free_port()
    pool = timelines(given.chunks, rng)
    count = given.streams // STREAMS_A_BODY
    seconds: dict[str, list[float]] = {"protobuf": [], "json": [], "grpc": [], "span_events": []}
    sizes: dict[str, float] = {}
    prefix = ("taskset", "-c", str(given.core))
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_process(pathlib.Path(folder) / "store", prefix=prefix, LEGATO_OTLP_GRPC_PORT=str(port)) as served,
        httpx.Client(timeout=120) as client,
        grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_send_message_length", -1)]) as channel,
    ):
        post = f"{served.otlp}/v1/traces"

        def over_http(media_type: str) -> Callable[[bytes], Any]:
            return lambda content: client.post(post, content=content, headers={"content-type": media_type}).raise_for_status()

        export: Any = channel.unary_unary(EXPORT)
        protobuf = over_http("application/x-protobuf")
        ways = {"protobuf": protobuf, "json": over_http("application/json"), "grpc": export, "span_events": protobuf}
        for number in range(given.rounds + 1):
            for name, send in ways.items():
                wanted = count if number else 4
                if name == "span_events":
                    parts = STREAMS_A_BODY // FOREIGN_A_BODY
                    bodies = [foreign_body(FOREIGN_A_BODY, given.chunks, rng) for _ in range(wanted * parts)]
                else:
                    bodies = [body(STREAMS_A_BODY, pool, rng) for _ in range(wanted)]
                if name == "json":
                    bodies = [json_of(ExportTraceServiceRequest.FromString(content)) for content in bodies]
                taken = fed(send, bodies)
                if number:
                    seconds[name].append(taken)
                    sizes[name] = sum(map(len, bodies)) / (count * STREAMS_A_BODY * given.chunks)
        stored = int(query(served, "SELECT count() FROM streams FORMAT TSV"))
    if stored != (given.rounds * count + 4) * STREAMS_A_BODY * len(ways):
        raise SystemExit(f"{stored} streams are stored, and more were acknowledged")
    chunks = count * STREAMS_A_BODY * given.chunks
    print(describe("chdb", "grpcio", "orjson", "protobuf"))
    figures: dict[str, float] = {f"chunks_per_s_{name}": round(chunks / median(taken)) for name, taken in seconds.items()}
    figures |= {f"bytes_per_chunk_{name}": round(size, 2) for name, size in sizes.items()}
    print(json.dumps({**figures, "n_rounds": given.rounds, "n_chunks_a_round": chunks}))


if __name__ == "__main__":
    main()
