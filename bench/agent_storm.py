"""Does the agent survive a storm of faults, with constant memory, every collector up again, and no lost step?

    python bench/agent_storm.py [--minutes 60] [--seed 1]

A `legato-gpu-agent` reads the metrics endpoints of four engines over HTTP and four GPUs (the fake library of the tests) five times a
second, receives steps from `StepRecorder`, and sends to a real `legato serve` behind a proxy. A fault begins about every second and lasts
1 to 8 s. Metrics endpoints: truncated, rejected, silent, slow, 50 MB, decreasing, NaN, noise, endless or long labels, server away, wrong
engine. GPUs: lost, hanging, failing, fields missing, driver missing, XID errors, throttled. Pipe: invalid datagrams. Receiver: rejects,
slow, closes, stalls, is killed. ZMQ publishers: garbage, huge, gaps, restarted, silent, away. The last minute of every ten is calm.

`*_early`: the median over the second tenth of the run; `*_late`: over the last. A run of a few minutes is all warm-up and fails. At the
end all faults are ended: then every collector must be up (within 100 s, since absent sources are retried once a minute) and every step must
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
from bench.agent_load.faults import ENGINES, GPUS, EnginePublisher, EngineServer, Storm, kv_events, one_pass  # noqa: E402
from bench.agent_load.metrics_endpoint import processor_s  # noqa: E402
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


class Resources(NamedTuple):
    """Resources of the agent's process at a time after its start."""

    at_s: float
    rss_mb: float
    threads: int
    fds: int


class Agent:
    """The agent's process, observed from outside."""

    def __init__(self, process: subprocess.Popen[bytes], metrics_port: int, log: pathlib.Path) -> None:
        self.process, self._log, self.resources = process, log, list[Resources]()
        self._url, self._began_s = f"http://127.0.0.1:{metrics_port}/metrics", time.monotonic()
        pressure = ("pressure",) if pathlib.Path("/proc/pressure/cpu").exists() else ()
        self.collectors = (*NODE, *pressure, *(f"page storm-{kind}" for kind in ENGINES), *(f"gpu {index}" for index in range(GPUS)))
        self.collectors += ("forward passes storm-sglang", "kv events storm-vllm")

    def record_resources(self) -> None:
        """Record its resources. Ends the bench if the process has ended."""
        if self.process.poll() is not None:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-3_000:]
            raise SystemExit(f"the agent ended with status {self.process.returncode}:\n{tail}")
        of = pathlib.Path(f"/proc/{self.process.pid}")
        fields = dict(line.split(":", 1) for line in (of / "status").read_text(encoding="ascii").splitlines())
        rss_mb, fds = int(fields["VmRSS"].split()[0]) / 1024, len(os.listdir(of / "fd"))
        self.resources.append(Resources(time.monotonic() - self._began_s, rss_mb, int(fields["Threads"]), fds))

    def has_started(self) -> bool:
        """Return whether it has started."""
        with suppress(httpx.TransportError):
            return bool(self.sums())
        return False

    def sums(self) -> Counter[str]:
        """Return its counters, by family, and by family and first label."""
        out = Counter[str]()
        for name, label, value in _METRIC.findall(httpx.get(self._url, timeout=30).text):
            for key in (name, f"{name} {label}"):
                out[key] += int(float(value))
        return out

    def down(self) -> list[str]:
        """Return the collectors that should be up and are not."""
        sums = self.sums()
        return [name for name in self.collectors if not sums[f"collector_up {name}"]]

    def row(self, faults: int) -> str:
        """Return a row of the table."""
        at_s, rss_mb, threads, fds = self.resources[-1]
        sums, up = self.sums(), f"{len(self.collectors) - len(self.down())}/{len(self.collectors)}"
        errors = sums["collector_errors"] + sums["send_errors"]
        return (
            f"{at_s / 60:>5.1f} {rss_mb:>7.1f} {threads:>7} {fds:>4} {processor_s(self.process.pid) / at_s:>5.2f} {up:>6}"
            f" {sums['sent_records sample']:>13,} {sums['dropped_records sample']:>9,} {errors:>7,} {faults:>7,}"
        )

    def exceptions(self) -> int:
        """Return the number of tracebacks in its log."""
        return self._log.read_text(encoding="utf-8", errors="replace").count("Traceback")


@contextmanager
def receiver(folder: pathlib.Path) -> Iterator[Serve]:
    """Run `legato serve`; kill it at the end, in any state."""
    serve = Serve(folder)
    try:
        yield serve
    finally:
        serve.kill()


@contextmanager
def agent(
    folder: pathlib.Path, endpoint: str, servers: Sequence[EngineServer], publishers: Sequence[EnginePublisher], gpus: FakeGpus
) -> Iterator[Agent]:
    """Run the command; yield it when it listens."""
    port, log = free_port(), folder / "agent.log"
    environ = {
        **os.environ,
        **gpus.environment(),
        "LEGATO_ENGINE_PIPE": str(folder / "s"),
        "LEGATO_ENDPOINT": endpoint,
        "LEGATO_ENGINES": ",".join(f"storm-{server.kind}=http://127.0.0.1:{server.port}" for server in servers),
        "LEGATO_ENGINE_SCAN": "0",
        "LEGATO_FORWARD_PASSES": f"storm-sglang={publishers[0].endpoint}",
        "LEGATO_KV_EVENTS": f"storm-vllm={publishers[1].endpoint}",
        "LEGATO_SAMPLE_MS": str(SAMPLE_MS),
        "LEGATO_AGENT_METRICS_PORT": str(port),
    }
    command = [sys.executable, "-m", "legato_gpu_agent"]
    with log.open("wb") as out, subprocess.Popen(command, env=environ, stdout=out, stderr=out) as process:
        try:
            running, until = Agent(process, port, log), time.monotonic() + 30
            while not running.has_started():
                running.record_resources()
                if time.monotonic() > until:
                    raise SystemExit("the agent did not start")
                time.sleep(0.1)
            running.resources.clear()
            yield running
        finally:
            process.terminate()
            process.wait(30)


def step(recorder: StepRecorder, ending: threading.Event) -> None:
    """Record steps as an engine does, until the end."""
    for number in range(1, 2**62):
        timed(recorder, number)
        if ending.wait(1 / STEPS_HZ):
            break
    until = time.monotonic() + CATCH_UP_S_MAX
    while not recorder.flush() and time.monotonic() < until:
        time.sleep(0.05)


def run_faults(running: Agent, storm: Storm, minutes: float, seed: int) -> None:
    """Begin and end random faults, record resources every 5 s, and print a row of the table every 120 s."""
    rng, began_s = random.Random(seed), time.monotonic()
    poll_s = table_s = begin_s = began_s
    while (now_s := time.monotonic()) < began_s + minutes * 60:
        storm.end_due()
        if now_s >= begin_s:
            begin_s = now_s + rng.expovariate(1 / FAULT_EVERY_S)
            if (now_s - began_s) % CALM_EVERY_S < CALM_EVERY_S - CALM_S:
                storm.begin_random()
        if now_s >= poll_s:
            poll_s = now_s + POLL_EVERY_S
            running.record_resources()
        if now_s >= table_s:
            table_s += TABLE_EVERY_S
            print(running.row(storm.count.total()), flush=True)
        time.sleep(0.1)


def end_faults(running: Agent, storm: Storm) -> list[str]:
    """End all faults; return the collectors that stay down."""
    storm.end_due(all_of_them=True)
    began_s = time.monotonic()
    time.sleep(HEAL_S)
    while (down := running.down()) and time.monotonic() < began_s + BACK_S_MAX:
        time.sleep(1)
    running.record_resources()
    print(f"{running.row(storm.count.total())}   {time.monotonic() - began_s:.0f} s after the end of all faults", flush=True)
    return down


def stored(serve: Serve, steps: int) -> tuple[int, int]:
    """Return the number of stored steps, and of duplicate rows. Waits for them, because the next attempt to send may be 30 s away."""
    until = time.monotonic() + ROWS_S_MAX
    while True:
        ((count, distinct),) = serve.rows("SELECT count(), uniqExact(step) FROM engine_steps FINAL WHERE engine_id = 'storm'")
        if int(distinct) >= steps or time.monotonic() > until:
            return int(distinct), int(count) - int(distinct)
        time.sleep(1)


def summary(resources: Sequence[Resources]) -> dict[str, float]:
    """Return early and late medians, and the growth rate of the memory."""
    end_s = resources[-1].at_s
    early = [each for each in resources if 0.1 * end_s <= each.at_s < 0.2 * end_s] or resources[:1]
    late = [each for each in resources if each.at_s >= 0.9 * end_s]
    warm = [each for each in resources if each.at_s >= 0.1 * end_s]
    out: dict[str, float] = {}
    for name in ("rss_mb", "threads", "fds"):
        for when, which in (("early", early), ("late", late)):
            out[f"{name}_{when}"] = round(statistics.median(getattr(each, name) for each in which), 1)
    slope = statistics.linear_regression([each.at_s / 3600 for each in warm], [each.rss_mb for each in warm]).slope
    return {**out, "rss_slope_mb_per_h": round(slope, 2)}


def problems_in(found: dict[str, float]) -> Iterator[str]:
    """Yield the requirements that are not met."""
    if found["rss_mb_late"] > found["rss_mb_early"] * (1 + GROWN_SHARE_MAX) + GROWN_MB_MAX:
        yield "its memory grew beyond the bound"
    for name in ("threads", "fds"):
        if found[f"{name}_late"] > found[f"{name}_early"] + GROWN_COUNT_MAX:
            yield f"its number of {name} grew beyond the bound"
    if found["steps_stored"] != found["steps_sent"] or found["steps_doubled"]:
        yield "steps were lost or duplicated"
    if found["collectors_up"] < found["collectors"]:
        yield "some collectors stayed down"


def main() -> None:
    """Run the bench, check the results and print them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    print(describe("chdb", "protobuf", "prometheus-client", "nvidia-ml-py"), _HEAD, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        gpus = FakeGpus(build(folder), folder / "gpus", *map(h200, range(GPUS)))
        gpus.set(None, {"init_error": 9})
        servers = [EngineServer(kind, random.Random(given.seed + place)) for place, kind in enumerate(ENGINES)]
        publishers = [EnginePublisher(payload, random.Random(given.seed)) for payload in (one_pass, kv_events)]
        pipe, ending = folder / "s", threading.Event()
        with receiver(folder) as serve, faulty(serve.otlp) as proxy, agent(folder, proxy.url, servers, publishers, gpus) as running:
            recorder = StepRecorder(environ={"LEGATO_ENGINE_PIPE": str(pipe), "LEGATO_ENGINE_ID": "storm"}, arguments=[])
            steps = threading.Thread(target=step, args=(recorder, ending))
            storm = Storm(servers, publishers, gpus, (proxy, serve), pipe, given.seed)
            steps.start()
            try:
                run_faults(running, storm, given.minutes, given.seed)
                found = summary(running.resources)
                down = end_faults(running, storm)
            finally:
                ending.set()
                steps.join()
            rows, duplicates = stored(serve, recorder.number)
            exceptions, sums = running.exceptions(), running.sums()
    print("faults: " + ", ".join(f"{what} {count}" for what, count in sorted(storm.count.items())))
    dropped = ", ".join(f"{count:,} of {key.split()[-1]}" for key, count in sums.items() if key.startswith("dropped_records "))
    print(f"receiver: {dict(proxy.count)}, {proxy.retries} retries; dropped: {dropped or 'none'}")
    print(f"{exceptions} tracebacks in the agent's log; down: {', '.join(down) or 'none'}")
    found |= {"minutes": given.minutes, "faults": storm.count.total(), "steps_sent": recorder.number, "steps_stored": rows}
    found |= {"steps_doubled": duplicates, "collectors_up": len(running.collectors) - len(down), "collectors": len(running.collectors)}
    problems = list(problems_in(found))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(json.dumps(found))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
