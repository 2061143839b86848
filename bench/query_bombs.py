"""Hostile queries beside honest senders: whether a reader's statement can stop `legato serve` from receiving.

    python bench/query_bombs.py [--minutes 0] [--seed 1] [--only TEXT]

A `legato serve` with an embedded store receives a stream every 100 ms while readers send each statement of `query_attack/corpus.sql`, one
after another, and then for `--minutes` random statements over the functions that the guard allows. The readers of 100 tenants take turns,
because a tenant with several such statements is refused all others. Each must be refused or end within the limits of the defaults. Printed
are the statements that took longest, that grew the process of the store most, and that ended it.

Last line: one JSON object with `statements`, `refused`, `ended` (by a limit), `answered`, `slowest_s`, `growth_max_mb` (the resident memory
of the process of the store above its memory before the first statement), `restarts`, `ack_p50_ms`, `ack_p99_ms`, `ack_failures`, `lost`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.bystander import Memory, Sender, watched  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from bench.crash_pipelines.serve import Serve, bearer, fresh_serve  # noqa: E402
from bench.query_attack.grammar import statements  # noqa: E402

CORPUS = pathlib.Path(__file__).with_name("query_attack") / "corpus.sql"
_SLOW_S = 5.0
_TENANTS = 100
_REFUSED = "497"
_LIMITS = frozenset(("158", "159", "160", "241", "396"))


@dataclass(frozen=True)
class Outcome:
    """What became of a statement: how long its reply took, how it ended, and the peak of memory meanwhile."""

    sql: str
    seconds: float
    code: str
    peak: int
    restarts: int


def corpus() -> list[str]:
    """The statements of the corpus."""
    return [line for line in CORPUS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("--")]


def attacked(serve: Serve, memory: Memory, sqls: Iterator[str], until_s: float) -> Iterator[Outcome]:
    """Send each statement until the time is over, and wait for its reply."""
    readers = itertools.cycle(serve.readers)
    with httpx.Client(base_url=f"http://127.0.0.1:{serve.read}", timeout=120) as client:
        for sql in sqls:
            if time.monotonic() > until_s:
                return
            memory.take()
            processes, started = len(memory.pids), time.perf_counter()
            reader = next(readers)
            try:
                reply = client.post("/", content=sql.encode(), headers=bearer(reader))
                code = reply.headers.get("X-ClickHouse-Exception-Code", "" if reply.status_code == 200 else str(reply.status_code))
            except httpx.TransportError as error:
                code = type(error).__name__
            seconds = time.perf_counter() - started
            yield Outcome(sql, seconds, code, memory.take(), len(memory.pids) - processes)


def _table(title: str, outcomes: list[Outcome], rest: int) -> None:
    print(f"\n{title}")
    for each in outcomes[:10]:
        print(f"{each.seconds:>7.1f} s {(each.peak - rest) / 1e6:>7.0f} MB  code {each.code or '-':<5} {each.sql[:100]}")


def _report(outcomes: list[Outcome], sender: Sender, rest: int, restarts: float) -> dict[str, object]:
    _table("longest", sorted(outcomes, key=lambda each: -each.seconds), rest)
    _table("most memory", sorted(outcomes, key=lambda each: -each.peak), rest)
    _table("ended the process of the store", [each for each in outcomes if each.restarts], rest)
    ack = np.array(sender.seconds) * 1000
    return {
        "statements": len(outcomes),
        "refused": sum(each.code == _REFUSED for each in outcomes),
        "ended": sum(each.code in _LIMITS for each in outcomes),
        "answered": sum(not each.code for each in outcomes),
        "slowest_s": round(max(each.seconds for each in outcomes), 1),
        "growth_max_mb": round((max(each.peak for each in outcomes) - rest) / 1e6),
        "restarts": int(restarts),
        "ack_p50_ms": round(float(np.percentile(ack, 50)), 1),
        "ack_p99_ms": round(float(np.percentile(ack, 99)), 1),
        "ack_failures": sender.failures,
        "lost": sender.lost,
    }


def _restarts(serve: Serve) -> float:
    metrics = httpx.get(f"http://127.0.0.1:{serve.otlp}/metrics", headers=bearer(serve.operator)).text
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith("legato_store_restarts_total{"))


def attack(serve: Serve, chosen: list[str], fuzz_s: float, seed: int) -> dict[str, object]:
    """Send the chosen statements and then random ones, beside an honest sender. Return the figures."""
    outcomes = []
    with watched(serve, of_serve=False) as (sender, memory):
        time.sleep(2)
        rest = memory.take()
        spelled = {name.lower(): name for (name,) in serve.rows("SELECT name FROM system.functions")}
        for sqls, seconds in ((iter(chosen), float("inf")), (statements(spelled, seed), fuzz_s)):
            for outcome in attacked(serve, memory, sqls, time.monotonic() + seconds):
                outcomes.append(outcome)
                if outcome.restarts or outcome.seconds > _SLOW_S:
                    print(f"{outcome.seconds:>7.1f} s  code {outcome.code or '-':<5} {outcome.sql[:120]}", flush=True)
    return _report(outcomes, sender, rest, _restarts(serve))


def main() -> None:
    """Attack, and print what happened."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=0, help="how long to send random statements after the corpus")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="only statements of the corpus with this text")
    given = options.parse_args()
    print(describe("chdb", "uvicorn"))
    with fresh_serve(_TENANTS) as serve:
        print(json.dumps(attack(serve, [sql for sql in corpus() if given.only in sql], given.minutes * 60, given.seed)))


if __name__ == "__main__":
    main()
