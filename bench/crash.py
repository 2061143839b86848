"""Does `legato serve` keep what it acknowledged when it is killed, and nothing twice?

    python bench/crash.py [--kills 20] [--spans 100000] [--seed 1]

What runs is what users run: the `legato serve` command on an embedded store. Senders post bodies of 1 to 200 streams, some with a
snapshot before its end, and keep each until it is acknowledged: what fails is sent again, every other time cut in two, and now and then
an acknowledged body is sent once more. Meanwhile `serve` gets SIGKILL at random moments under load and is started again. At the end
every stream that was sent is compared with every row that is stored, read through the read endpoint.
Last line: one JSON object with `lost`, `doubled`, `kills`, `spans`. Exit status 1 when anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.machine import describe  # noqa: E402
from helpers.ports import free_port  # noqa: E402
from helpers.spans import native_span, request, scope_of  # noqa: E402

SENDERS = 4
READY_S_MAX = 60
# What `native_span` packs.
CHUNKS = 20
# Rows a query; the endpoint has a bound on rows of one result.
PAGE = 200_000

Rev = tuple[str, str, int]


class Serve:
    """A `legato serve` that can be killed and started again on the same store and ports."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.otlp, self.read = free_port(), free_port()
        self._environ = {
            **os.environ,
            "LEGATO_STORE": f"chdb://{folder}/store",
            "LEGATO_OTLP_PORT": str(self.otlp),
            "LEGATO_READ_PORT": str(self.read),
        }
        self._log = (folder / "serve.log").open("ab")
        self.start()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "legato_ingest", "serve"]
        self._process = subprocess.Popen(command, env=self._environ, stdout=self._log, stderr=self._log)
        until = time.monotonic() + READY_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.otlp}/readyz").status_code == 200:
                    return
            if self._process.poll() is not None:
                raise SystemExit(f"legato serve ended with status {self._process.returncode}: see {self._log.name}")
            time.sleep(0.02)
        raise SystemExit(f"legato serve was not ready within {READY_S_MAX} s: see {self._log.name}")

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as a user would."""
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def rows(self, sql: str) -> list[list[str]]:
        """The rows of a query through the read endpoint."""
        reply = httpx.post(f"http://127.0.0.1:{self.read}/", content=f"{sql} FORMAT TSV", timeout=120)
        reply.raise_for_status()
        return [line.split("\t") for line in reply.text.splitlines()]


@dataclass
class Sent:
    """What was acknowledged, over all senders."""

    revs: set[Rev] = field(default_factory=set)
    acknowledged: int = 0
    retries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, body: ExportTraceServiceRequest) -> None:
        """A body that was acknowledged as a whole."""
        revs = {rev_of(span) for span in scope_of(body).spans}
        with self.lock:
            self.revs |= revs
            self.acknowledged += 1


def rev_of(span: object) -> Rev:
    """The identity under which a span's row is stored: a snapshot has its stream's span id."""
    attributes = {attribute.key: attribute.value for attribute in span.attributes}  # type: ignore[attr-defined]
    stream = attributes.get("legato.stream.span_id")
    span_id = stream.string_value if stream is not None else span.span_id.hex()  # type: ignore[attr-defined]
    return span.trace_id.hex(), span_id, attributes["legato.stream.rev"].int_value  # type: ignore[attr-defined]


def body_of(rng: random.Random) -> ExportTraceServiceRequest:
    """A body of streams of 20 chunks, a third of them with a snapshot of their own beside the end."""
    body = request({"service.name": "crash"})
    for _ in range(rng.choice((1, 1, 5, 50, 200))):
        start = time.time_ns() - rng.randrange(3_600_000_000_000)
        snapshot = rng.random() < 0.33
        span = native_span(body, {"legato.stream.rev": 1 + snapshot}, start_ns=start, rng=rng)
        if snapshot:
            attributes = {
                "legato.stream.rev": 1,
                "legato.stream.span_id": span.span_id.hex(),
                "legato.stream.next_due": 30.0,
                "legato.stream.outcome": "running",
            }
            native_span(body, attributes, trace_id=span.trace_id, start_ns=start, rng=rng, name="legato.stream.snapshot")
    return body


def cut(body: ExportTraceServiceRequest) -> Iterator[ExportTraceServiceRequest]:
    """The body as two, its spans dealt out like cards."""
    for half in (0, 1):
        part = ExportTraceServiceRequest()
        part.CopyFrom(body)
        del scope_of(part).spans[:]
        scope_of(part).spans.extend(list(scope_of(body).spans)[half::2])
        if scope_of(part).spans:
            yield part


def taken(client: httpx.Client, url: str, body: ExportTraceServiceRequest) -> bool:
    """Whether the body was acknowledged; raises when it was refused for good or in part."""
    try:
        reply = client.post(url, content=body.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})
    except httpx.TransportError:
        return False
    if reply.status_code in (429, 503):
        return False
    if reply.status_code != 200 or ExportTraceServiceResponse.FromString(reply.content).HasField("partial_success"):
        raise SystemExit(f"{reply.status_code}: {reply.content[:300]!r}")
    return True


def send(url: str, sent: Sent, stop: threading.Event, rng: random.Random) -> None:
    """Post bodies until told to stop; the last is kept until it is acknowledged too."""
    with httpx.Client(timeout=30) as client:
        while not stop.is_set():
            waiting = collections.deque([body_of(rng)])
            while waiting:
                body = waiting.popleft()
                if taken(client, url, body):
                    sent.add(body)
                    if rng.random() < 0.1:
                        taken(client, url, body)
                    continue
                with sent.lock:
                    sent.retries += 1
                waiting.extend(cut(body) if rng.random() < 0.5 else (body,))
                time.sleep(0.03)


def storm(serve: Serve, kills: int, spans: int, seed: int) -> Sent:
    """Kill and restart under load until there were enough kills and spans."""
    sent, stop, failures = Sent(), threading.Event(), list[BaseException]()
    url = f"http://127.0.0.1:{serve.otlp}/v1/traces"

    def guarded(number: int) -> None:
        try:
            send(url, sent, stop, random.Random(f"{seed}/{number}"))
        except BaseException as error:
            failures.append(error)

    senders = [threading.Thread(target=guarded, args=(number,)) for number in range(SENDERS)]
    for sender in senders:
        sender.start()
    rng = random.Random(seed)
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.05, 0.8))
            serve.kill()
            serve.start()
        while len(sent.revs) < spans and not failures:
            time.sleep(0.05)
    finally:
        stop.set()
        for sender in senders:
            sender.join()
    if failures:
        raise failures[0]
    return sent


def judge(serve: Serve, sent: Sent) -> tuple[int, int]:
    """How many streams were lost, and how many rows are there twice.

    A stream is kept when the row that people read (the view `streams`) has its newest acknowledged rev, with all its chunks. (The store
    merges a snapshot away once it has the rev after it, so older revs are no loss; no rev may ever be there twice.)
    """
    newest = collections.Counter[tuple[str, str]]()
    for trace, span, rev in sent.revs:
        newest[trace, span] = max(newest[trace, span], rev)
    found = collections.Counter[tuple[str, str]]()
    twice = strangers = 0
    pages = 1 + len(newest) // PAGE
    for page in range(pages):
        where = f"WHERE modulo(cityHash64(trace_id), {pages}) = {page}"
        ((rows, distinct),) = serve.rows(f"SELECT count(), uniqExact(trace_id, span_id, rev) FROM stream_revs {where}")
        twice += int(rows) - int(distinct)
        for trace, span, row_rev, chunks in serve.rows(f"SELECT hex(trace_id), hex(span_id), rev, length(dt_us) FROM streams {where}"):
            key = trace.lower(), span.lower()
            twice += key in found
            strangers += key not in newest or int(row_rev) > newest[key]
            found[key] = int(row_rev) if int(chunks) == CHUNKS else 0
    if strangers:
        raise SystemExit(f"{strangers} rows are stored that were never acknowledged, though every body was sent until it was")
    return sum(found[key] != rev for key, rev in newest.items()), twice


def main() -> None:
    """Run the storm, judge, print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--spans", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        serve = Serve(pathlib.Path(folder))
        try:
            sent = storm(serve, given.kills, given.spans, given.seed)
            lost, doubled = judge(serve, sent)
        finally:
            serve.stop()
    print(describe("chdb", "pyarrow", "uvicorn"))
    print(f"{sent.acknowledged:,} bodies acknowledged, {sent.retries:,} retries, {given.kills} kills under load")
    print(json.dumps({"lost": lost, "doubled": doubled, "kills": given.kills, "spans": len(sent.revs)}))
    sys.exit(1 if lost or doubled else 0)


if __name__ == "__main__":
    main()
