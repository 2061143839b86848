"""Does the agent survive a storm of faults: alive, with flat memory, every collector up again, and no step lost?

    python bench/agent_storm.py [--minutes 60] [--seed 1]

A `legato-gpu-agent` reads the metrics pages of four engines over HTTP and four GPUs (the fake library of the tests) five times a second,
receives steps from `StepRecorder`, and sends to a real `legato serve` behind a proxy. A fault begins about every second and lasts some
seconds. Metrics pages: truncated, refused, silent, dripping, 50 MB, decreasing, NaN, noise, endless or long labels, server away, wrong
engine. GPUs: lost, hanging, failing, fields missing, driver missing, XID errors, throttled. Pipe messages: garbage. Receiver: rejects,
slow, closes, stalls, is killed. ZMQ publishers: garbage, huge, gaps, restarted, silent, away. The last minute of every ten is calm.

`*_early`: the median over the second tenth of the run; `*_late`: over the last. A run of a few minutes is all warm-up and fails. At the
end all faults are ended: then every collector must be up (within 100 s, since absent sources are tried once a minute) and every step must
be one row. Last line: one JSON object. Exit status 1 otherwise, and when the agent died, its memory grew by more than 10 % + 5 MB, or its
threads or open files by more than 3.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import httpx

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.agent import timed  # noqa: E402
from bench.agent_load.faults import GPUS, PAGES, PageServer, Speaker, Storm, kv_events, one_pass  # noqa: E402
from bench.agent_load.pages import processor_s  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from bench.crash_pipelines.serve import Serve  # noqa: E402
from helpers.platform.faults import faulty  # noqa: E402
from helpers.platform.nvml import FakeGpus, build, h200  # noqa: E402
from helpers.servers.ports import free_port  # noqa: E402
from legato_gpu_agent.plugin.recorder import StepRecorder  # noqa: E402

STEPS_HZ, SAMPLE_MS = 10, 200
FAULT_EVERY_S, POLL_EVERY_S, TABLE_EVERY_S = 1.0, 5.0, 120.0
CALM_EVERY_S, CALM_S, HEAL_S, BACK_S_MAX, CATCH_UP_S_MAX, ROWS_S_MAX = 600.0, 60.0, 20.0, 100.0, 20.0, 120.0
GROWN_SHARE_MAX, GROWN_MB_MAX, GROWN_COUNT_MAX = 0.10, 5.0, 3
NODE = ("engines", "gpus", "gpu errors", "cpu", "memory", "network", "processes")
_METRIC = re.compile(r'^legato_agent_(\w+?)(?:_total)?\{\w+="([^"]*)".*\} (\S+)$', re.M)
_HEAD = "  min  RSS MB threads  fds  core     up  samples sent   dropped  errors  faults"


class Look(NamedTuple):
    """What the agent's process had, so many seconds after its start."""

    at_s: float
    rss_mb: float
    threads: int
    fds: int


class Agent:
    """The agent's process, from outside."""

    def __init__(self, process: subprocess.Popen[bytes], metrics_port: int, log: pathlib.Path) -> None:
        self.process, self._log, self.looks = process, log, list[Look]()
        self._url, self._began_s = f"http://127.0.0.1:{metrics_port}/metrics", time.monotonic()
        pressure = ("pressure",) if pathlib.Path("/proc/pressure/cpu").exists() else ()
        self.collectors = (*NODE, *pressure, *(f"page storm-{kind}" for kind in PAGES), *(f"gpu {index}" for index in range(GPUS)))
        self.collectors += ("forward passes storm-sglang", "kv events storm-vllm")

    def look(self) -> None:
        """Note what it has now. Ends the bench when it is no more."""
        if self.process.poll() is not None:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-3_000:]
            raise SystemExit(f"the agent ended with status {self.process.returncode}:\n{tail}")
        of = pathlib.Path(f"/proc/{self.process.pid}")
        fields = dict(line.split(":", 1) for line in (of / "status").read_text(encoding="ascii").splitlines())
        rss_mb, fds = int(fields["VmRSS"].split()[0]) / 1024, len(os.listdir(of / "fd"))
        self.looks.append(Look(time.monotonic() - self._began_s, rss_mb, int(fields["Threads"]), fds))

    def answers(self) -> bool:
        """Whether it has started."""
        with suppress(httpx.TransportError):
            return bool(self.sums())
        return False

    def sums(self) -> Counter[str]:
        """Its counters, by family, and by family and first label."""
        out = Counter[str]()
        for name, label, value in _METRIC.findall(httpx.get(self._url, timeout=30).text):
            for key in (name, f"{name} {label}"):
                out[key] += int(float(value))
        return out

    def down(self) -> list[str]:
        """The collectors that should be up, and are not."""
        sums = self.sums()
        return [name for name in self.collectors if not sums[f"collector_up {name}"]]

    def row(self, faults: int) -> str:
        """Of the table."""
        at_s, rss_mb, threads, fds = self.looks[-1]
        sums, up = self.sums(), f"{len(self.collectors) - len(self.down())}/{len(self.collectors)}"
        errors = sums["collector_errors"] + sums["send_errors"]
        return (
            f"{at_s / 60:>5.1f} {rss_mb:>7.1f} {threads:>7} {fds:>4} {processor_s(self.process.pid) / at_s:>5.2f} {up:>6}"
            f" {sums['sent_records sample']:>13,} {sums['dropped_records sample']:>9,} {errors:>7,} {faults:>7,}"
        )

    def exceptions(self) -> int:
        """Tracebacks in its log."""
        return self._log.read_text(encoding="utf-8", errors="replace").count("Traceback")


@contextmanager
def receiver(folder: pathlib.Path) -> Iterator[Serve]:
    """`legato serve`, gone at the end whatever was done to it."""
    serve = Serve(folder)
    try:
        yield serve
    finally:
        serve.kill()


@contextmanager
def agent(folder: pathlib.Path, endpoint: str, pages: Sequence[PageServer], speakers: Sequence[Speaker], gpus: FakeGpus) -> Iterator[Agent]:
    """The command, listening."""
    port, log = free_port(), folder / "agent.log"
    environ = {
        **os.environ,
        **gpus.environment(),
        "LEGATO_ENGINE_PIPE": str(folder / "s"),
        "LEGATO_ENDPOINT": endpoint,
        "LEGATO_ENGINES": ",".join(f"storm-{page.kind}=http://127.0.0.1:{page.port}" for page in pages),
        "LEGATO_ENGINE_SCAN": "0",
        "LEGATO_FORWARD_PASSES": f"storm-sglang={speakers[0].endpoint}",
        "LEGATO_KV_EVENTS": f"storm-vllm={speakers[1].endpoint}",
        "LEGATO_SAMPLE_MS": str(SAMPLE_MS),
        "LEGATO_AGENT_METRICS_PORT": str(port),
    }
    command = [sys.executable, "-m", "legato_gpu_agent"]
    with log.open("wb") as out, subprocess.Popen(command, env=environ, stdout=out, stderr=out) as process:
        try:
            running, until = Agent(process, port, log), time.monotonic() + 30
            while not running.answers():
                running.look()
                if time.monotonic() > until:
                    raise SystemExit("the agent did not start")
                time.sleep(0.1)
            running.looks.clear()
            yield running
        finally:
            process.terminate()
            process.wait(30)


def step(recorder: StepRecorder, ending: threading.Event) -> None:
    """What an engine does all the time, until it ends."""
    for number in range(1, 2**62):
        timed(recorder, number)
        if ending.wait(1 / STEPS_HZ):
            break
    until = time.monotonic() + CATCH_UP_S_MAX
    while not recorder.flush() and time.monotonic() < until:
        time.sleep(0.05)


def blow(running: Agent, storm: Storm, minutes: float, seed: int) -> None:
    """Faults at random, with a look and a row of the table now and then."""
    rng, began_s = random.Random(seed), time.monotonic()
    look_s = table_s = draw_s = began_s
    while (now_s := time.monotonic()) < began_s + minutes * 60:
        storm.heal()
        if now_s >= draw_s:
            draw_s = now_s + rng.expovariate(1 / FAULT_EVERY_S)
            if (now_s - began_s) % CALM_EVERY_S < CALM_EVERY_S - CALM_S:
                storm.draw()
        if now_s >= look_s:
            look_s = now_s + POLL_EVERY_S
            running.look()
        if now_s >= table_s:
            table_s += TABLE_EVERY_S
            print(running.row(storm.count.total()), flush=True)
        time.sleep(0.1)


def healed(running: Agent, storm: Storm) -> list[str]:
    """Nothing is wrong any more: the collectors that stay down all the same."""
    storm.heal(all_of_them=True)
    began_s = time.monotonic()
    time.sleep(HEAL_S)
    while (down := running.down()) and time.monotonic() < began_s + BACK_S_MAX:
        time.sleep(1)
    running.look()
    print(f"{running.row(storm.count.total())}   {time.monotonic() - began_s:.0f} s after all was healed", flush=True)
    return down


def stored(serve: Serve, steps: int) -> tuple[int, int]:
    """How many steps are rows, and how many rows are there twice. Waits for them: an attempt to send may be half a minute away."""
    until = time.monotonic() + ROWS_S_MAX
    while True:
        ((count, distinct),) = serve.rows("SELECT count(), uniqExact(step) FROM engine_steps FINAL WHERE engine_id = 'storm'")
        if int(distinct) >= steps or time.monotonic() > until:
            return int(distinct), int(count) - int(distinct)
        time.sleep(1)


def figures(looks: Sequence[Look]) -> dict[str, float]:
    """Early and late, and how fast memory grew in between."""
    end_s = looks[-1].at_s
    early = [each for each in looks if 0.1 * end_s <= each.at_s < 0.2 * end_s] or looks[:1]
    late = [each for each in looks if each.at_s >= 0.9 * end_s]
    warm = [each for each in looks if each.at_s >= 0.1 * end_s]
    out: dict[str, float] = {}
    for name in ("rss_mb", "threads", "fds"):
        for when, which in (("early", early), ("late", late)):
            out[f"{name}_{when}"] = round(statistics.median(getattr(each, name) for each in which), 1)
    slope = statistics.linear_regression([each.at_s / 3600 for each in warm], [each.rss_mb for each in warm]).slope
    return {**out, "rss_slope_mb_per_h": round(slope, 2)}


def wrong(found: dict[str, float]) -> Iterator[str]:
    """What must not be."""
    if found["rss_mb_late"] > found["rss_mb_early"] * (1 + GROWN_SHARE_MAX) + GROWN_MB_MAX:
        yield "its memory grew"
    for name in ("threads", "fds"):
        if found[f"{name}_late"] > found[f"{name}_early"] + GROWN_COUNT_MAX:
            yield f"its {name} grew"
    if found["steps_stored"] != found["steps_sent"] or found["steps_doubled"]:
        yield "steps were lost or doubled"
    if found["collectors_up"] < found["collectors"]:
        yield "not all collectors came back"


def main() -> None:
    """Run, judge, print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    print(describe("chdb", "protobuf", "prometheus-client", "nvidia-ml-py"), _HEAD, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        gpus = FakeGpus(build(folder), folder / "gpus", *map(h200, range(GPUS)))
        gpus.set(None, {"init_error": 9})
        pages = [PageServer(kind, random.Random(given.seed + place)) for place, kind in enumerate(PAGES)]
        speakers = [Speaker(payload, random.Random(given.seed)) for payload in (one_pass, kv_events)]
        pipe, ending = folder / "s", threading.Event()
        with receiver(folder) as serve, faulty(serve.otlp) as proxy, agent(folder, proxy.url, pages, speakers, gpus) as running:
            recorder = StepRecorder(environ={"LEGATO_ENGINE_PIPE": str(pipe), "LEGATO_ENGINE_ID": "storm"}, arguments=[])
            steps = threading.Thread(target=step, args=(recorder, ending))
            storm = Storm(pages, speakers, gpus, (proxy, serve), pipe, given.seed)
            steps.start()
            try:
                blow(running, storm, given.minutes, given.seed)
                found = figures(running.looks)
                down = healed(running, storm)
            finally:
                ending.set()
                steps.join()
            rows, doubled = stored(serve, recorder.number)
            exceptions, sums = running.exceptions(), running.sums()
    print("faults: " + ", ".join(f"{what} {count}" for what, count in sorted(storm.count.items())))
    dropped = ", ".join(f"{count:,} of {key.split()[-1]}" for key, count in sums.items() if key.startswith("dropped_records "))
    print(f"receiver: {dict(proxy.count)}, {proxy.retries} retries; dropped: {dropped or 'none'}")
    print(f"{exceptions} tracebacks in the agent's log; down: {', '.join(down) or 'none'}")
    found |= {"minutes": given.minutes, "faults": storm.count.total(), "steps_sent": recorder.number, "steps_stored": rows}
    found |= {"steps_doubled": doubled, "collectors_up": len(running.collectors) - len(down), "collectors": len(running.collectors)}
    problems = list(wrong(found))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(json.dumps(found))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
