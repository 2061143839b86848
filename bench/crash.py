"""Crash bench: whether every acknowledged stream is stored exactly once when all processes are killed and all connections fail.

    python bench/crash.py [--kills 20] [--spans 100000] [--store-kills 20] [--minutes 0] [--aimed 0] [--seed 1]

Three pipelines. Direct: senders post bodies of 1 to 200 streams to `legato serve`, two of a thousand with 7,500 that are stored in two
batches, and some with a snapshot before the end of a stream; failed bodies are sent again, every other time cut in two, and some
acknowledged bodies once more; `serve` receives SIGKILL at random moments. The same, but only the process of its store receives SIGKILL.
Collector: an application with the SDK → the Collector with `collector/gateway.yaml` → `serve`, 200 streams per second. Each process is
killed and restarted in turn; the ingest rejects requests, is slow, is away for a minute, is cut off in the middle of requests and replies;
its disk is full, and so is the Collector's queue. `--minutes` continues with random trials. At the end every acknowledged stream is
queried through the read endpoint. The process of a store that was killed more than three times within a minute is started again after a
pause of up to half a minute, so a hundred of its kills take an hour. `--aimed` kills the Collector during its start; this is a separate
run, which may lose data (README).

Last line: one JSON object with `lost`, `doubled`, `kills`, `spans`, `retries`. Exit status 1 if a stream was lost or doubled, or if an
application received an error code that it does not retry.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe  # noqa: E402
from bench.crash_pipelines.collector import RETRYABLE, TRIALS, Trial, aim, pipeline  # noqa: E402
from bench.crash_pipelines.direct import storm  # noqa: E402
from bench.crash_pipelines.serve import Found, Serve, judge  # noqa: E402
from helpers.servers import collector  # noqa: E402

_HEAD = f"{'trial':<34} {'kills':>6} {'s':>6} {'spans':>8} {'requests':>9} {'retries':>8}  found"


def _line(trial: Trial) -> str:
    return f"{trial.name:<34} {trial.kills:>6} {trial.seconds:>6.1f} {trial.acknowledged:>8,} {trial.requests:>9,} {trial.retries:>8,}"


def direct(folder: pathlib.Path, kills: int, spans: int, seed: int, *, of_store: bool = False) -> tuple[Found, Trial]:
    """Senders to `serve`. ``of_store``: the process of the store alone is killed."""
    serve, began = Serve(folder), time.monotonic()
    try:
        sent = storm(serve, kills, spans, seed, of_store=of_store)
        name = "direct: kill the store" if of_store else "direct: kill the ingest"
        trial = Trial(name, kills, time.monotonic() - began, len(sent.revs), sent.acknowledged, sent.retries)
        found = judge(serve, sent.revs)
    finally:
        serve.stop()
    if found.strangers:
        raise SystemExit(f"{found.strangers} rows are stored that were never acknowledged, though every body was sent until it was")
    return found, trial


def through_collector(folder: pathlib.Path, minutes: float, seed: int) -> tuple[Found, list[Trial]]:
    """Run each trial once, then random trials for ``minutes``; print the acknowledgements so far."""
    trials = []
    with pipeline(folder, seed=seed) as running:
        rng, until = random.Random(seed), time.monotonic() + minutes * 60
        names = list(TRIALS)
        while names or time.monotonic() < until:
            trials.append(running.attempt(names.pop(0) if names else rng.choice(list(TRIALS))))
            print(_line(trials[-1]), flush=True)
            if not trials[-1].acknowledged:
                raise SystemExit(f"nothing was acknowledged during `{trials[-1].name}`: it has shown nothing")
        running.kill_application()
        running.drain()
        if refused := set(running.statuses()) - RETRYABLE - {200}:
            raise SystemExit(f"the application was refused with {sorted(refused)}, which it does not retry")
        return judge(running.serve, running.acknowledged()), trials


def aimed(folder: pathlib.Path, times: int, seed: int) -> None:
    """Kills of the Collector's start: what they lose."""
    with pipeline(folder, seed=seed) as running:
        hit = aim(running, times)
        running.kill_application()
        running.drain()
        spans = running.acknowledged()
        found = judge(running.serve, spans)
    print(f"aimed at the Collector's start: {hit} of {times} hit; {found.lost} of {len(spans):,} spans lost, {found.doubled} doubled")


def main() -> None:
    """Run, judge, print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=20, help="of `serve` in the direct way; the pipeline's trials have theirs")
    options.add_argument("--spans", type=int, default=100_000, help="of the direct way while `serve` is killed, at least")
    options.add_argument("--store-kills", type=int, default=20, help="of the process of the store in the direct way")
    options.add_argument("--minutes", type=float, default=0, help="how long the pipeline goes on")
    options.add_argument("--aimed", type=int, default=0, help="kills of the Collector's start, in a run of their own")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    if why := collector.missing():
        raise SystemExit(why)
    print(describe("chdb", "pyarrow", "uvicorn", "opentelemetry-sdk"), _HEAD, sep="\n")
    found, trials = [], []
    for kills, spans, of_store in ((given.kills, given.spans, False), (given.store_kills, 0, True)):
        with tempfile.TemporaryDirectory() as folder:
            each, trial = direct(pathlib.Path(folder), kills, spans, given.seed, of_store=of_store)
        found.append(each)
        trials.append(trial)
        print(f"{_line(trial)}  {each.lost} lost, {each.doubled} doubled", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        each, piped = through_collector(pathlib.Path(folder), given.minutes, given.seed)
        found.append(each)
        trials += piped
    if given.aimed:
        with tempfile.TemporaryDirectory() as folder:
            aimed(pathlib.Path(folder), given.aimed, given.seed)
    lost, doubled = (sum(getattr(each, name) for each in found) for name in ("lost", "doubled"))
    kills, spans, retries = (sum(getattr(each, name) for each in trials) for name in ("kills", "acknowledged", "retries"))
    print(json.dumps({"lost": lost, "doubled": doubled, "kills": kills, "spans": spans, "retries": retries}))
    sys.exit(1 if lost or doubled else 0)


if __name__ == "__main__":
    main()
