"""A tenant that sends ten times its limit: how long the acknowledgements of another tenant take.

    python bench/fairness.py [--rounds 5] [--seconds 20] [--rate 1000000]

A `legato serve` limits each tenant to `--rate` bytes a second (`LEGATO_TENANT_BYTES_PER_S`). An honest tenant sends a
stream every 100 ms. In each round another tenant sends bodies of 64 KB, over eight connections of another process, for `--seconds` at its
limit and for as long at ten times its limit; which of the two comes first changes with each round. It never waits when it is refused.

Last line: one JSON object with `limit_p99_ms` and `over_p99_ms` (the acknowledgements of the honest tenant beside each), `moved` (the ratio
of the two, less one), `refused` (the share of requests at ten times the limit that got 429), `ack_failures` and `lost` (honest streams).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.bystander import Sender, watched  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from bench.crash_pipelines.serve import Serve, bearer, fresh_serve  # noqa: E402
from helpers.builders.spans import native_span, request, steady_timeline  # noqa: E402

_BODY_BYTES, _CONNECTIONS, _TIMES = 65_536, 8, 10
_BODIES = 16


def bodies(seed: int) -> list[bytes]:
    """Return different bodies of streams of 200 chunks."""
    rng, made = random.Random(seed), list[bytes]()
    for _ in range(_BODIES):
        body, timeline = request({"service.name": "greedy"}), steady_timeline(200)
        while body.ByteSize() < _BODY_BYTES:
            native_span(body, {"legato.stream.timeline": timeline}, start_ns=time.time_ns(), rng=rng)
        made.append(body.SerializeToString())
    return made


def flood(url: str, token: str, per_s: float, seconds: float, seed: int) -> tuple[Counter[int], float]:
    """Send so many bodies a second. Return the replies by status, and when the first was sent (monotonic clock).

    The process has the lowest priority. In practice the sender is another machine, so its processor time must not delay the server.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    replies, lock = Counter[int](), threading.Lock()
    headers = {"Content-Type": "application/x-protobuf", **bearer(token)}
    rng = random.Random(seed)
    # Made before, as they take processor time.
    senders = [(httpx.Client(timeout=60), bodies(rng.randrange(2**32))) for _ in range(_CONNECTIONS)]
    began_s = time.monotonic()
    due = iter(_due(began_s, began_s + seconds, per_s))

    def send(client: httpx.Client, own: list[bytes]) -> None:
        with client:
            for number in range(1_000_000):
                with lock:
                    at_s = next(due, None)
                if at_s is None:
                    return
                time.sleep(max(0.0, at_s - time.monotonic()))
                status = client.post(url, content=own[number % len(own)], headers=headers).status_code
                with lock:
                    replies[status] += 1

    threads = [threading.Thread(target=send, args=each) for each in senders]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return replies, began_s


def _due(began_s: float, until_s: float, per_s: float) -> Iterator[float]:
    number = 0
    while (at_s := began_s + number / per_s) < until_s and time.monotonic() < until_s:
        yield at_s
        number += 1


def beside(serve: Serve, sender: Sender, per_s: float, seconds: float, seed: int) -> tuple[list[float], Counter[int]]:
    """Flood from another process. Return the seconds of the honest tenant's acknowledgements meanwhile, and the replies to the flood."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        replies, began_s = pool.apply(flood, (sender.url, serve.greedy, per_s, seconds, seed))
    return [taken for taken, at_s in zip(sender.seconds, sender.sent_s, strict=False) if at_s >= began_s], replies


def compared(serve: Serve, rounds: int, seconds: float, rate: int) -> dict[str, object]:
    """Run the rounds and return the figures."""
    acks: dict[int, list[float]] = {1: [], _TIMES: []}
    replies: dict[int, Counter[int]] = {1: Counter(), _TIMES: Counter()}
    with watched(serve, of_serve=True) as (sender, _):
        for number in range(rounds):
            for times in sorted(acks, reverse=bool(number % 2)):
                taken, replied = beside(serve, sender, times * rate / _BODY_BYTES, seconds, number)
                acks[times] += taken
                replies[times] += replied
                p50, p99 = np.percentile(np.array(taken) * 1000, (50, 99))
                print(f"round {number + 1}: {times:>2} times the limit  p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  {dict(replied)}", flush=True)
    limit_ms, over_ms = (float(np.percentile(np.array(acks[times]) * 1000, 99)) for times in acks)
    over = replies[_TIMES]
    return {
        "limit_p99_ms": round(limit_ms, 1),
        "over_p99_ms": round(over_ms, 1),
        "moved": round(over_ms / limit_ms - 1, 3),
        "refused": round(over[429] / max(1, over.total()), 3),
        "n": len(acks[1]),
        "ack_failures": sender.failures,
        "lost": sender.lost,
    }


def main() -> None:
    """Measure, and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--rate", type=int, default=1_000_000, help="bytes a second that each tenant may send")
    given = options.parse_args()
    print(describe("chdb", "uvicorn"))
    os.environ["LEGATO_TENANT_BYTES_PER_S"] = str(given.rate)
    with fresh_serve(tenants=1) as serve:
        print(json.dumps(compared(serve, given.rounds, given.seconds, given.rate)))


if __name__ == "__main__":
    main()
