"""Hostile bodies beside an honest sender: whether one sender can delay the acknowledgements of another, or take the memory.

    python bench/body_bombs.py [--seconds 6] [--bytes 65536] [--connections 1] [--tenant] [--only TEXT]

A `legato serve` with an embedded store receives a stream every 100 ms. For `--seconds` each, `--connections` send a hostile body again and
again, with `--tenant` as another tenant: small bodies that declare many chunks, steps, texts, series or faults (the cases of
`tests/ingest/otlp/test_split_attacks.py`), rows on each day of the last three months in each table, and bodies that are much larger after
decompression. Between two attacks the honest sender is alone for as long, which is compared.

Last line: one JSON object with `attacks`, `quiet_p99_ms`, `ack_p99_ms` (of the acknowledgements beside all attacks), `worst_ack_p99_ms` (of
those beside the worst attack), `added_ms` (the difference of that to `quiet_p99_ms`), `growth_max_mb` (the resident memory of the processes
of `serve` above that before the first attack), `requests` (hostile ones), `ack_failures`, `lost` (honest streams).
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.bystander import watched  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from bench.crash_pipelines.serve import Serve, bearer, fresh_serve  # noqa: E402
from helpers.builders.spans import native_span, request  # noqa: E402
from helpers.builders.worst_bodies import CASES, DAY_NS, ZSTD_BOMB, finished, point, points, resources_in_json, spans, steps  # noqa: E402
from legato_ingest.otlp.signals import POINTS, SPANS  # noqa: E402

_DAYS = 89


@dataclass(frozen=True)
class Attack:
    """A body, and the path that it is sent to. A body without an ``encoding`` is sent as gzip."""

    name: str
    path: str
    body: bytes
    content_type: str = "application/x-protobuf"
    encoding: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the request."""
        return {"Content-Type": self.content_type, "Content-Encoding": self.encoding or "gzip"}

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        return self.body if self.encoding else gzip.compress(self.body, 6)


def attacks(size: int, now_ns: int) -> Iterator[Attack]:
    """Yield each attack, with a body of about so many bytes."""
    for name, (signal, make) in CASES.items():
        yield Attack(name, signal.path, make(now_ns, size))
    yield Attack("64 MiB that are no request", SPANS.path, b"\xff" * 2**26)
    yield Attack("a resource for each span in JSON", SPANS.path, resources_in_json(now_ns, 70_000), "application/json")
    days = [now_ns - number * DAY_NS for number in range(_DAYS)]
    native = request()
    for at_ns in days:
        native_span(native, start_ns=at_ns, duration_ns=1_000)
    yield Attack("streams on 89 days", SPANS.path, native.SerializeToString())
    yield Attack("steps on 89 days", SPANS.path, spans(steps(at_ns, 2, 1) for at_ns in days))
    yield Attack("finished requests on 89 days", SPANS.path, spans(finished(at_ns, 2) for at_ns in days))
    yield Attack("data points on 89 days", POINTS.path, points(point(at_ns) for at_ns in days))
    yield Attack("33 MB in 1 KB of zstd", SPANS.path, ZSTD_BOMB, encoding="zstd")
    yield Attack("steps 71 minutes apart", SPANS.path, spans([steps(now_ns - 88 * DAY_NS, 1_700, 2**32 - 1)] * 8))


def sent(clients: Sequence[httpx.Client], attack: Attack, until_s: float) -> Counter[int]:
    """Send a body again and again on each connection. Return the replies by status."""
    content = attack.content

    def send(client: httpx.Client) -> Counter[int]:
        replies = Counter[int]()
        while time.monotonic() < until_s:
            replies[client.post(attack.path, content=content, headers=attack.headers).status_code] += 1
        return replies

    with ThreadPoolExecutor(len(clients)) as threads:
        return sum(threads.map(send, clients), Counter[int]())


def connected(serve: Serve, connections: int) -> list[httpx.Client]:
    """Return so many clients, of a second tenant if there are tenants.

    To make one takes 20 ms of Python's interpreter, for which the honest sender would wait if it were made during an attack.
    """
    return [httpx.Client(base_url=f"http://127.0.0.1:{serve.otlp}", headers=bearer(serve.greedy), timeout=120) for _ in range(connections)]


def attacked(serve: Serve, seconds: float, size: int, connections: int, only: str) -> dict[str, object]:
    """Run each attack beside the honest sender, and return the figures."""
    quiet, beside, growth, requests = list[float](), list[list[float]](), 0, 0
    print(f"{'attack':<40} {'bytes':>8} {'replies':<18} {'ack p50':>8} {'p99':>7} {'max ms':>7} {'MB':>6}")
    clients = connected(serve, connections)
    with watched(serve, of_serve=True) as (sender, memory):
        time.sleep(3)
        rest = memory.take()
        for attack in (each for each in attacks(size, time.time_ns()) if only in each.name):
            before = len(sender.seconds)
            time.sleep(seconds)
            began = len(sender.seconds)
            replies = sent(clients, attack, time.monotonic() + seconds)
            quiet += sender.seconds[before:began]
            beside.append([1000 * each for each in sender.seconds[began:]] or [1000 * seconds])
            grown, requests = memory.take() - rest, requests + replies.total()
            growth = max(growth, grown)
            _print(attack, replies, beside[-1], grown)
    quiet_p99, worst = 1000 * float(np.percentile(quiet, 99)), max(float(np.percentile(each, 99)) for each in beside)
    return {
        "attacks": len(beside),
        "quiet_p99_ms": round(quiet_p99, 1),
        "ack_p99_ms": round(float(np.percentile(np.concatenate(beside), 99)), 1),
        "worst_ack_p99_ms": round(worst, 1),
        "added_ms": round(worst - quiet_p99, 1),
        "growth_max_mb": round(growth / 1e6),
        "requests": requests,
        "ack_failures": sender.failures,
        "lost": sender.lost,
    }


def _print(attack: Attack, replies: Counter[int], acks_ms: list[float], grown: int) -> None:
    p50, p99, most = np.percentile(acks_ms, [50, 99, 100])
    answered = " ".join(f"{status}:{number}" for status, number in sorted(replies.items()))
    print(f"{attack.name:<40} {len(attack.body):>8,} {answered:<18} {p50:>8.0f} {p99:>7.0f} {most:>7.0f} {grown / 1e6:>6.0f}", flush=True)


def main() -> None:
    """Attack, and print what happened."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=6, help="duration of each attack, and of the pause before it")
    options.add_argument("--bytes", type=int, default=65_536, help="size of a body before compression")
    options.add_argument("--connections", type=int, default=1, help="connections that send a hostile body at the same time")
    options.add_argument("--tenant", action="store_true", help="send the hostile bodies as another tenant than the honest sender")
    options.add_argument("--only", default="", help="only attacks with this text in their name")
    given = options.parse_args()
    print(describe("chdb", "uvicorn"))
    with fresh_serve(tenants=int(given.tenant)) as serve:
        print(json.dumps(attacked(serve, given.seconds, given.bytes, given.connections, given.only)))


if __name__ == "__main__":
    main()
