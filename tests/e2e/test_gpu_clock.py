"""A GPU that gets hot, all the way: NVML's bindings → the agent's collector → OTLP → `legato serve` → its worker → who reads.

The world is simulated and so is the GPU behind the bindings; what reads it, carries it, judges it and shows it is what users run.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from helpers.builders.world import MS, World
from helpers.builders.world_spans import ENGINE, steps, stream, trace_id
from helpers.dashboards.panels import panels
from helpers.platform.nvml import FakeGpus, build, h200
from helpers.servers.serving import Served, legato, serve_process
from helpers.servers.waiting import until
from legato_gpu_agent.agent.otlp_metrics import metrics_request
from legato_gpu_agent.collectors.measurement import Timed
from legato_gpu_agent.collectors.nvml import Gpu, Nvml
from legato_gpu_agent.collectors.nvml_fields import device_identity
from legato_ingest.cli.grafana.macros import Range, expand

HEADERS = {"content-type": "application/x-protobuf"}
# NVML's counter of hardware thermal slowdown, in ns (drivers since 580.82).
HEAT = "field.270"
TIMES = 16
pynvml = pytest.importorskip("pynvml")


class Owner:
    """Every process is the engine's."""

    def owners_of(self, pids: list[int], is_part: bool = False) -> tuple[str, ...]:
        """The engine."""
        return (ENGINE,) if pids else ()


@pytest.fixture(scope="module")
def world() -> World:
    """Ten seconds that ended a minute ago; six steps in a row at a sixteenth of the clock."""
    throttled = {step: float(TIMES) for step in range(200, 206)}
    return World(throttled=throttled, offset_ns=time.time_ns() // 10**9 * 10**9 - 70 * 10**9 - 10**15)


@pytest.fixture(scope="module")
def served(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All of it was sent, and the worker has judged."""
    folder = tmp_path_factory.mktemp("hot")
    settings = {
        "LEGATO_ATTRIBUTE_EVERY_S": "0.5",
        "LEGATO_ATTRIBUTE_GRACE_S": "0.5",
        "LEGATO_STALL_MS": "100",
        "LEGATO_ROLLUP_EVERY_S": "0.5",
    }
    with serve_process(folder / "store", **settings) as out:
        for path, body in (
            ("/v1/metrics", metrics_request("node-1", samples(world, folder))),
            ("/v1/traces", steps(world)),
            ("/v1/traces", stream(world, "server")),
            ("/v1/traces", stream(world, "client")),
        ):
            reply = httpx.post(out.otlp + path, content=body.SerializeToString(), headers=HEADERS, timeout=30)
            assert reply.status_code == 200 and len(reply.content) < 8, reply.content
        for table in ("verdicts", "replays", "stall_minutes", "but_for_minutes"):
            until(lambda: int(asked(out, f"SELECT count() AS n FROM {table}")[0]["n"]))  # noqa: B023
        yield out


def samples(world: World, folder: pathlib.Path) -> list[Timed]:
    """What the collector reads of the GPU ten times a second of the world's time."""
    library = folder.parent / "libnvidia-ml.so.1"
    out: list[Timed] = []
    with pytest.MonkeyPatch.context() as patch:
        gpus = FakeGpus(library if library.exists() else build(library.parent), folder / "gpus", {**h200(0), "process": ["4242 1024"]})
        gpus.load(patch)
        Nvml().init()
        uuid, model = device_identity(pynvml.nvmlDeviceGetHandleByIndex(0))
        gpu = Gpu(0, uuid, model, Owner())  # type: ignore[arg-type]
        truth = world.gpu()
        for at_ns, heat_ns, mhz in zip(truth.times_ns.tolist(), truth.hard_ns.tolist(), truth.mhz.tolist(), strict=True):
            gpus.set(0, {"clock.sm": int(mhz), HEAT: int(heat_ns)})
            out += [(at_ns, each) for each in gpu.collect(at_ns)]
        assert not gpu.missing or set(gpu.missing) == {"MIG"}
        # Other tests of this process begin it anew.
        pynvml.nvmlShutdown()
    return out


def asked(served: Served, sql: str) -> list[dict[str, Any]]:
    """A query's rows through the read endpoint."""
    reply = httpx.post(served.read, content=f"{sql} FORMAT JSONEachRow", timeout=30)
    assert reply.status_code == 200, reply.text
    return [dict(httpx.Response(200, content=line).json()) for line in reply.text.splitlines()]


def shown(served: Served, board: str, title: str) -> list[dict[str, Any]]:
    """What a panel shows of the last hour."""
    now_ms = time.time_ns() // 10**6
    return asked(served, expand(panels(board)[title], Range(now_ms - 3_600_000, now_ms + 60_000, 60_000)))


def test_the_stream_says_that_the_clock_was_lowered(served: Served) -> None:
    """`legato stream` names it, with the driver's time and the clock as its evidence; the parts are the clock's."""
    page = legato("stream", trace_id(0).hex(), environ=served.environ)
    assert page.returncode == 0, page.stderr
    text = " ".join(page.stdout.split())
    assert "gpu_clock" in text and "the driver had lowered a GPU's clock for" in text and "down to 123 MHz of 1980" in text, page.stdout
    rows = asked(served, "SELECT cause, confidence, parts, gap_us, evidence FROM verdicts FINAL WHERE cause != 'base'")
    assert rows and {row["cause"] for row in rows} == {"gpu_clock"} and {row["confidence"] for row in rows} == {"strong"}
    for row in rows:
        assert sum(int(ns) for ns in row["parts"].values()) == 1000 * int(row["gap_us"])


def test_the_jitter_attribution_dashboard_shows_it(served: Served) -> None:
    """By cause, in time and as what would be left without it."""
    assert any("gpu_clock" in str(row) for row in shown(served, "attribution", "Stalled time by cause"))
    assert any("gpu_clock" in str(row) for row in shown(served, "attribution", "Causes and confidence"))
    assert any("gpu_clock" in str(row) for row in shown(served, "attribution", "Counterfactual: without one cause"))


def test_the_serving_nodes_dashboard_shows_the_gpu(served: Served, world: World) -> None:
    """Its clock, its power, and the share of the time in which the heat held it back."""
    clocks = [float(row["mhz"]) for row in shown(served, "nodes", "GPU clocks") if row["gpu"].endswith("clock.sm")]
    assert 500 < min(clocks) < 1980, clocks
    throttling = shown(served, "nodes", "GPU throttling")
    lowered_s = float(np.sum(world.took[200:206])) / (1000 * MS)
    assert sum(60 * float(row["share of time"]) for row in throttling if "thermal_hardware" in row["why"]) == pytest.approx(
        lowered_s, abs=0.02
    )
    assert {float(row["watts"]) for row in shown(served, "nodes", "GPU power")} == {350.0}
