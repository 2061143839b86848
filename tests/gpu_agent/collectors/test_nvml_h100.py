"""What the driver of a real H100 answered (`data/nvml_h100.json`), read by the collector: units, and values that it does not report.

Recorded with NVIDIA's bindings on an H100 80GB HBM3 with driver 580.159.04, while a program multiplied matrices, copied memory or idled.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml as nv
import pytest

from helpers.platform.nvml import FakeGpus, build
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.collectors.nvml import Gpu, Nvml

_RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "data" / "nvml_h100.json").read_text())
_MOMENTS = _RECORDED["moments"]
_REASON = "no cumulative counters of PCIe with 64 bits"


@pytest.fixture
def gpus(tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    library = tmp_path_factory.getbasetemp() / "libnvidia-ml.so.1"
    world = FakeGpus(library if library.exists() else build(library.parent), tmp_path / "state", _MOMENTS[0]["keys"])
    world.set(None, {"driver": _RECORDED["driver"]})
    world.load(monkeypatch)
    Nvml().init()
    yield world
    nv.nvmlShutdown()


def _read(gpus: FakeGpus, place: int) -> tuple[Gpu, dict[str, float]]:
    """Return the values at a recorded moment, by metric and the attributes that are not the device's."""
    gpus.set(0, {**_MOMENTS[0]["keys"], **_MOMENTS[place]["keys"]})
    registry: Any = SimpleNamespace(owners_of=lambda pids, **_: ())
    gpu = Gpu(0, _MOMENTS[0]["keys"]["uuid"], "NVIDIA H100 80GB HBM3", registry)
    found = [each for each in gpu.collect(1) if isinstance(each, Measurement)]
    return gpu, {
        " ".join([each.metric, *(v for k, v in each.attributes if k in ("reason", "sensor", "error.type"))]): each.value for each in found
    }


def test_all_that_an_h100_has_is_read(gpus: FakeGpus) -> None:
    """Without NVLink, as one GPU of a virtual machine, and without PCIe's counters, which this driver answers in 32 bits."""
    gpu, values = _read(gpus, 0)
    assert gpu.missing == {"NVLink traffic": "no counters of NVLink", "PCIe traffic": _REASON}
    assert len(values) == 21 and values["hw.temperature memory"] == 43 and values["hw.gpu.clock.sm"] == 345
    # The driver's own use of its memory counts: nvidia-smi shows 0 MiB here.
    assert values["hw.gpu.memory.usage"] == 480 * 1024 * 1024


def test_the_counter_of_pcie_overflows_within_a_copy() -> None:
    """0.2 s after a copy of 40 GiB began the counter is lower than at the moment before: as a counter of bytes it would be wrong."""
    before, during = (int(_MOMENTS[place]["keys"]["field.198"].split()[0]) for place in (3, 4))
    assert _MOMENTS[4]["load"] == "h2d" and during < before + 8 * 2**30 / 10


def test_power_energy_and_throttled_time_agree(gpus: FakeGpus) -> None:
    """Over ten and twenty seconds at the power limit: the energy is the power times the time, and the limit acted all the time."""
    for first, last in ((1, 2), (2, 3)):
        (_, before), (_, after) = _read(gpus, first), _read(gpus, last)
        length_s = (_MOMENTS[last]["at_ms"] - _MOMENTS[first]["at_ms"]) / 1000
        watts = (after["hw.energy"] - before["hw.energy"]) / length_s
        assert watts == pytest.approx(before["hw.power"], rel=0.02) and after["hw.power.limit"] == 700
        capped_s = after["hw.gpu.throttle.time power_cap"] - before["hw.gpu.throttle.time power_cap"]
        assert capped_s == pytest.approx(length_s, rel=0.005)
        assert after["hw.gpu.clock.sm"] < 0.7 * after["hw.gpu.clock.sm.limit"]
