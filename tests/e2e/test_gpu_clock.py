"""A GPU that gets hot, end to end: NVML bindings → the agent's collector → OTLP → `legato serve` → its worker → CLI and dashboards.

The world and the GPU behind the bindings are simulated; all other parts are the ones that users run.
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
from legato_ingest.dashboards.macros import Range, expand

HEADERS = {"content-type": "application/x-protobuf"}
# NVML's counter of hardware thermal slowdown, in ns (drivers since 580.82).
HEAT = "field.270"
TIMES = 16
pynvml = pytest.importorskip("pynvml")


class Owner:
    """An engine registry that assigns every process to the engine."""

    def owners_of(self, pids: list[int], is_part: bool = False) -> tuple[str, ...]:
        """Return the engine."""
        return (ENGINE,) if pids else ()


@pytest.fixture(scope="module")
def world() -> World:
    """Ten seconds that ended a minute ago, with six consecutive steps at a sixteenth of the clock."""
    throttled = {step: float(TIMES) for step in range(200, 206)}
    return World(throttled=throttled, offset_ns=time.time_ns() // 10**9 * 10**9 - 70 * 10**9 - 10**15)


@pytest.fixture(scope="module")
def served(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that received everything and has judged it."""
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
            until(lambda: int(rows_of(out, f"SELECT count() AS n FROM {table}")[0]["n"]))  # noqa: B023
        yield out


def samples(world: World, folder: pathlib.Path) -> list[Timed]:
    """Return the collector's samples of the GPU, ten a second of the world's time."""
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
        # Other tests of this process initialize NVML themselves.
        pynvml.nvmlShutdown()
    return out


def rows_of(served: Served, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query through the read endpoint."""
    reply = httpx.post(served.read, content=f"{sql} FORMAT JSONEachRow", timeout=30)
    assert reply.status_code == 200, reply.text
    return [dict(httpx.Response(200, content=line).json()) for line in reply.text.splitlines()]


def shown(served: Served, board: str, title: str) -> list[dict[str, Any]]:
    """Return the rows of a panel over the last hour."""
    now_ms = time.time_ns() // 10**6
    return rows_of(served, expand(panels(board)[title], Range(now_ms - 3_600_000, now_ms + 60_000, 60_000)))


def test_legato_stream_reports_throttling(served: Served) -> None:
    """It prints gpu_clock with the driver's time and the clock as evidence, and the parts add up."""
    page = legato("stream", trace_id(0).hex(), environ=served.environ)
    assert page.returncode == 0, page.stderr
    text = " ".join(page.stdout.split())
    assert "gpu_clock" in text and "the driver throttled a GPU for" in text and "down to 123 MHz of 1,980" in text, page.stdout
    rows = rows_of(served, "SELECT cause, confidence, parts, gap_us, evidence FROM verdicts FINAL WHERE cause != 'base'")
    assert rows and {row["cause"] for row in rows} == {"gpu_clock"} and {row["confidence"] for row in rows} == {"strong"}
    for row in rows:
        assert sum(int(ns) for ns in row["parts"].values()) == 1000 * int(row["gap_us"])


def test_the_jitter_attribution_dashboard_shows_it(served: Served) -> None:
    """In the panels of causes and in the counterfactual."""
    assert any("gpu_clock" in str(row) for row in shown(served, "attribution", "Stalled time by cause"))
    assert any("gpu_clock" in str(row) for row in shown(served, "attribution", "Causes and confidence"))
    assert any("gpu_clock" in str(row) for row in shown(served, "attribution", "Counterfactual: without one cause"))


def test_the_serving_nodes_dashboard_shows_the_gpu(served: Served, world: World) -> None:
    """The clock, the power, and the share of time with thermal throttling."""
    clocks_mhz = [float(row["hertz"]) / 1e6 for row in shown(served, "nodes", "GPU clocks") if row["gpu"].endswith("clock.sm")]
    assert 500 < min(clocks_mhz) < 1980, clocks_mhz
    throttling = shown(served, "nodes", "GPU throttling")
    lowered_s = float(np.sum(world.took[200:206])) / (1000 * MS)
    assert sum(60 * float(row["share of time"]) for row in throttling if "thermal_hardware" in row["why"]) == pytest.approx(
        lowered_s, abs=0.02
    )
    assert {float(row["watts"]) for row in shown(served, "nodes", "GPU power")} == {350.0}
