"""What is asked of a GPU: each figure's name, unit and value by NVIDIA's own bindings, and what becomes of those that are not told."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml as nv
import pytest

from helpers.platform.nvml import FakeGpus, Value, build, h200
from legato_gpu_agent.collectors.measurement import Reading
from legato_gpu_agent.collectors.nvml import Gpu
from legato_gpu_agent.collectors.nvml_fields import ASKED, Figure, Unknown, field_values, identity_of

_GIB, _MIB = 1 << 30, 1 << 20
_ALL = 0xFFFFFFFF
_TX, _RX = f"field.138.{_ALL}", f"field.139.{_ALL}"
# An H200 some hours into its work, with a number of its own for each figure.
_WORKED: dict[str, Value] = {
    **{"clock.sm": 1755, "clock.sm.max": 1980, "clock.mem": 3201, "clock.mem.max": 3202, "clock.graphics": 1, "clock.graphics.max": 2},
    **{"field.74": 5_000_000_000, "field.75": 4_000_000_000, "field.76": 1_000_000, "field.77": 2_500_000_000},
    **{"field.269": 3_250_000_000, "field.270": 750_000_000, "field.271": 1, "field.78": 7, "field.81": 8},
    **{"power_mw": 698_765, "power_limit_mw": 700_000, "energy_mj": (1 << 40) + 1, "temperature": 61, "field.82": "66 uint"},
    **{"utilization.gpu": 97, "utilization.memory": 40, "field.197": 11 * _GIB, "field.198": 7 * _GIB, "pcie_replay": 4},
    **{_TX: 3 * _GIB, _RX: 5 * _GIB, "field.5": 12, "field.6": 2},
}
_TOLD = {
    "clocks": [Figure("hw.gpu.clock.sm", "MHz", 1755)],
    "clock limit": [Figure("hw.gpu.clock.sm.limit", "MHz", 1980)],
    "memory clock": [Figure("hw.gpu.clock.memory", "MHz", 3201)],
    "memory clock limit": [Figure("hw.gpu.clock.memory.limit", "MHz", 3202)],
    "throttle time": [
        Figure("hw.gpu.throttle.time", "s", seconds, True, (("reason", reason),))
        for reason, seconds in (
            *(("board_limit", 2.5), ("power_brake", 1e-9), ("power_cap", 5.0), ("sync_boost", 0.001)),
            *(("thermal_hardware", 0.75), ("thermal_software", 3.25)),
        )
    ],
    "power": [Figure("hw.power", "W", 698.765)],
    "power limit": [Figure("hw.power.limit", "W", 700)],
    "energy": [Figure("hw.energy", "J", ((1 << 40) + 1) / 1000, True)],
    # What the driver keeps for itself is used, too.
    "memory": [Figure("hw.gpu.memory.usage", "By", 80 * _GIB + 614 * _MIB), Figure("hw.gpu.memory.limit", "By", 143_771 * _MIB)],
    "temperature": [Figure("hw.temperature", "Cel", 61, False, (("sensor", "gpu"),))],
    "memory temperature": [Figure("hw.temperature", "Cel", 66, False, (("sensor", "memory"),))],
    "utilization": [Figure("hw.gpu.utilization", "1", 0.97)],
    "PCIe traffic": [
        Figure("hw.gpu.io", "By", 11 * _GIB, True, (("link", "pcie"), ("network.io.direction", "transmit"))),
        Figure("hw.gpu.io", "By", 7 * _GIB, True, (("link", "pcie"), ("network.io.direction", "receive"))),
    ],
    "PCIe replays": [Figure("hw.errors", "{error}", 4, True, (("error.type", "pcie_replay"),))],
    "NVLink traffic": [
        Figure("hw.gpu.io", "By", 3 * _GIB * 1024, True, (("link", "nvlink"), ("network.io.direction", "transmit"))),
        Figure("hw.gpu.io", "By", 5 * _GIB * 1024, True, (("link", "nvlink"), ("network.io.direction", "receive"))),
    ],
    "ECC errors": [
        Figure("hw.errors", "{error}", 12, True, (("error.type", "ecc_corrected"),)),
        Figure("hw.errors", "{error}", 2, True, (("error.type", "ecc_uncorrected"),)),
    ],
}
# By question: the keys without which it has no answer; and what it says then, where it is not what NVML does.
_KEYS = {
    **{"clocks": ["clock.sm"], "clock limit": ["clock.sm.max"], "memory clock": ["clock.mem"], "memory clock limit": ["clock.mem.max"]},
    **{"throttle time": [f"field.{field}" for field in (74, 75, 76, 77, 269, 270, 271)], "power": ["power_mw"]},
    **{"power limit": ["power_limit_mw"], "energy": ["energy_mj"], "memory": ["memory.used"], "temperature": ["temperature"]},
    **{"memory temperature": ["field.82"], "utilization": ["utilization.gpu"], "PCIe traffic": ["field.197", "field.198"]},
    **{"PCIe replays": ["pcie_replay"], "NVLink traffic": [_TX, _RX], "ECC errors": ["field.5", "field.6"]},
}
_WHY = {
    "throttle time": "no counter of lowered clocks",
    "memory temperature": "no sensor in its memory",
    "PCIe traffic": "no cumulative counters of PCIe",
    "NVLink traffic": "no counters of NVLink",
    "ECC errors": "no counters of ECC: the GPU has none, or it is off",
}


@pytest.fixture
def gpus(tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    library = tmp_path_factory.getbasetemp() / "libnvidia-ml.so.1"
    world = FakeGpus(library if library.exists() else build(library.parent), tmp_path / "state", {**h200(0), **_WORKED})
    world.load(monkeypatch)
    nv.nvmlInit()
    yield world
    nv.nvmlShutdown()


def _handle() -> Any:
    return nv.nvmlDeviceGetHandleByIndex(0)


def _told(what: str) -> list[Figure]:
    return list(ASKED[what](_handle()))


def _all_but(*missing: str) -> dict[str, list[Figure]]:
    return {what: _told(what) for what in ASKED if what not in missing}


def _throttled() -> dict[str, float]:
    return {dict(figure.attributes)["reason"]: figure.value for figure in _told("throttle time")}


def test_every_figure_of_an_h200(gpus: FakeGpus) -> None:
    """Each figure has its metric, unit, value and attributes, and says whether it counts; the device says who it is."""
    assert list(ASKED) == list(_TOLD) == list(_KEYS)
    assert _all_but() == _TOLD
    assert identity_of(_handle()) == (h200(0)["uuid"], "NVIDIA H200")


@pytest.mark.parametrize("what", [*_KEYS, "MIG"])
def test_what_a_gpu_does_not_know_is_asked_once(gpus: FakeGpus, what: str) -> None:
    """It is missing, with the reason, until the GPU is looked up anew; every other figure is told meanwhile, as it was."""
    neighbours: Any = SimpleNamespace(owners_of=lambda pids, **_: ())
    gpu = Gpu(0, str(h200(0)["uuid"]), "NVIDIA H200", neighbours)
    keys = {key: {**h200(0), **_WORKED}[key] for key in _KEYS.get(what, ["mig"])}
    left = sorted((figure.metric, figure.value) for other, told in _TOLD.items() if other != what for figure in told)
    gpus.remove(0, *keys)
    for _ in range(2):
        assert sorted((each.metric, each.value) for each in gpu.collect(1) if isinstance(each, Reading)) == left
        assert gpu.missing == {what: _WHY.get(what, "Not Supported")}
        gpus.set(0, keys)
    gpus.set(0, {"error": nv.NVML_ERROR_GPU_IS_LOST})
    with pytest.raises(nv.NVMLError_GpuIsLost):
        list(gpu.collect(2))
    gpus.remove(0, "error")
    assert (len(list(gpu.collect(3))), gpu.missing) == (25, {})


@pytest.mark.parametrize("what", _KEYS)
@pytest.mark.parametrize(
    ("code", "error"),
    [(2, Unknown), (3, Unknown), (4, Unknown), (13, Unknown), (25, Unknown), (26, Unknown)]
    + [(15, nv.NVMLError_GpuIsLost), (16, nv.NVMLError_ResetRequired), (10, nv.NVMLError_Timeout), (999, nv.NVMLError_Unknown)],
)
def test_what_cannot_be_told_and_what_failed(gpus: FakeGpus, what: str, code: int, error: type[Exception]) -> None:
    """NVML's codes for `there is no such thing` make a figure unknown; any other code is a fault, and is raised, of fields as of calls."""
    gpus.set(0, {key: f"error {code}" for key in _KEYS[what]})
    with pytest.raises(error):
        _told(what)
    assert _all_but(what) == {other: told for other, told in _TOLD.items() if other != what}


@pytest.mark.parametrize(
    ("what", "key", "value", "left"),
    [
        ("throttle time", "field.74", None, [0, 1, 3, 4, 5]),
        ("throttle time", "field.74", "error 999", [0, 1, 3, 4, 5]),
        ("PCIe traffic", "field.197", None, [1]),
        ("PCIe traffic", "field.198", "error 999", [0]),
        ("NVLink traffic", _TX, None, [1]),
        ("NVLink traffic", _RX, "error 999", [0]),
        ("ECC errors", "field.5", None, [1]),
        ("ECC errors", "field.6", "error 15", [0]),
    ],
)
def test_a_field_that_is_not_told_takes_none_with_it(gpus: FakeGpus, what: str, key: str, value: str | None, left: list[int]) -> None:
    """Of a question that several fields answer, those are told that are there: never under the name of another."""
    if value is None:
        gpus.remove(0, key)
    else:
        gpus.set(0, {key: value})
    assert _told(what) == [_TOLD[what][place] for place in left]


@pytest.mark.parametrize("driver", ["575.51", "575.51.03", "580.65.06", "580.81.99", "470.256.02", "no version", None])
def test_an_older_driver_is_not_asked_for_numbers_that_it_means_otherwise(gpus: FakeGpus, driver: str | None) -> None:
    """Before 580.82, or where the version is not told, fields 269 to 271 are no time with lowered clocks; 74 to 77 are."""
    if driver is None:
        gpus.remove(None, "driver")
    else:
        gpus.set(None, {"driver": driver})
    assert _throttled() == {"power_cap": 5.0, "thermal": 4.0, "sync_boost": 0.001, "board_limit": 2.5}
    gpus.remove(0, *(f"field.{field}" for field in (74, 75, 76, 77)))
    with pytest.raises(Unknown, match="no counter of lowered clocks"):
        _told("throttle time")


@pytest.mark.parametrize("driver", ["580.82", "580.82.07", "580.159.04", "590.48.01", "1000.1"])
def test_a_newer_driver_tells_heat_apart(gpus: FakeGpus, driver: str) -> None:
    """From 580.82 on the finer reasons of heat stand in place of the coarse one, which would count them twice."""
    gpus.set(None, {"driver": driver})
    assert _throttled() == {
        **{"power_cap": 5.0, "sync_boost": 0.001, "board_limit": 2.5},
        **{"thermal_software": 3.25, "thermal_hardware": 0.75, "power_brake": 1e-9},
    }


@pytest.mark.parametrize(
    ("absent", "heat"),
    [
        ([269, 270], {"thermal": 4.0, "power_brake": 1e-9}),
        ([269, 270, 271], {"thermal": 4.0}),
        ([269], {"thermal_hardware": 0.75, "power_brake": 1e-9}),
        ([75, 269, 270, 271], {}),
    ],
)
def test_heat_is_counted_once(gpus: FakeGpus, absent: list[int], heat: dict[str, float]) -> None:
    """The coarse reason of heat is told where no finer one is, and only there."""
    gpus.remove(0, *(f"field.{field}" for field in absent))
    assert _throttled() == {"power_cap": 5.0, "sync_boost": 0.001, "board_limit": 2.5, **heat}


@pytest.mark.parametrize(
    ("said", "value"),
    [("66 uint", 66), ("4294967295 uint", 4294967295), ("66 ulong", 66), ("66 ull", 66), ("18446744073709551615 ull", 2.0**64)]
    + [("-4 int", -4), ("-4 sll", -4), ("65535 ushort", 65535), ("66.5 double", 66.5)],
)
def test_a_field_is_read_as_the_type_that_it_has(gpus: FakeGpus, said: str, value: float) -> None:
    """A value is that of the member that the driver filled, whatever lies in the others."""
    gpus.set(0, {"field.82": said})
    assert field_values(_handle(), ["NVML_FI_DEV_MEMORY_TEMP"]) == {"NVML_FI_DEV_MEMORY_TEMP": value}


def test_fields_that_the_bindings_do_not_know(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field without a number in these bindings is left out, others keep their values, and where none is left nothing is asked."""
    monkeypatch.delattr(nv, "NVML_FI_DEV_ECC_SBE_AGG_TOTAL")
    assert _told("ECC errors") == _TOLD["ECC errors"][1:]
    monkeypatch.delattr(nv, "NVML_FI_DEV_ECC_DBE_AGG_TOTAL")
    handle = _handle()
    gpus.set(0, {"error": 999})
    with pytest.raises(Unknown, match="no counters of ECC"):
        list(ASKED["ECC errors"](handle))
    assert field_values(handle, []) == {}


def test_the_older_question_for_the_temperature(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver or bindings without the newer call are asked by the older one; a fault of the newer one is not hidden by it."""

    def refused(code: int) -> None:
        def call(*_: Any) -> int:
            raise nv.NVMLError(code)

        monkeypatch.setattr(nv, "nvmlDeviceGetTemperatureV", call)

    for code in (nv.NVML_ERROR_FUNCTION_NOT_FOUND, nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nv.NVML_ERROR_NOT_SUPPORTED):
        refused(code)
        assert _told("temperature") == _TOLD["temperature"]
    refused(nv.NVML_ERROR_UNKNOWN)
    with pytest.raises(nv.NVMLError_Unknown):
        _told("temperature")
    monkeypatch.delattr(nv, "nvmlDeviceGetTemperatureV")
    assert _told("temperature") == _TOLD["temperature"]


def test_names_in_bytes(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """What bindings give as bytes is text here, whatever bytes they are."""
    monkeypatch.setattr(nv, "nvmlDeviceGetUUID", lambda _: b"GPU-1")
    monkeypatch.setattr(nv, "nvmlDeviceGetName", lambda _: b"NVIDIA \xff")
    monkeypatch.setattr(nv, "nvmlSystemGetDriverVersion", lambda: b"575.51")
    assert identity_of(_handle()) == ("GPU-1", "NVIDIA \N{REPLACEMENT CHARACTER}")
    assert "thermal" in _throttled()


def test_nothing_is_told_of_a_lost_gpu(gpus: FakeGpus) -> None:
    """A GPU that fell off the bus answers no question: each raises that, and none takes it for a figure that is unknown."""
    handle = _handle()
    gpus.set(0, {"error": nv.NVML_ERROR_GPU_IS_LOST})
    for ask in ASKED.values():
        with pytest.raises(nv.NVMLError_GpuIsLost):
            list(ask(handle))


def test_a_person_reads_what_is_missing(gpus: FakeGpus, tmp_path: pathlib.Path) -> None:
    """`legato-gpu-agent --once --print` names each GPU, what it does not tell and what that costs, or that there is no driver."""
    gpus.set(1, {**h200(1), "name": "NVIDIA L4"})
    gpus.remove(1, "clock.sm", "field.82", *_KEYS["throttle time"])
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    environ = {**os.environ, "LEGATO_PROC_PATH": "/proc", "LEGATO_ENGINE_SCAN": "0", "LEGATO_HOST_NAME": "node-7"}
    command = [sys.executable, "-m", "legato_gpu_agent", "--once", "--print"]
    said = []
    for more in (gpus.environment(), {"LD_LIBRARY_PATH": str(tmp_path)}):
        run = subprocess.run(command, env={**environ, **more}, capture_output=True, text=True, timeout=120, check=False)
        assert run.stderr == ""
        said.append(run.stdout.partition("\nsteps: ")[0])
    of_gpus = re.sub(r"\d+\.\d ms$", "1 ms", said[0][said[0].index("✓ gpu 0") :], flags=re.MULTILINE)
    assert of_gpus.splitlines() == _LOOK
    assert "✓ gpus                     up       1 readings in " in said[0]
    assert "\n– gpus                     absent   no libnvidia-ml.so.1: this host has no NVIDIA driver, or" in said[1]
    assert "\n      without it: gpu_clock is never named; what lowered clocks cost is charged to host\n" in said[1]


_LOOK = f"""\
✓ gpu 0                    up       25 readings in 1 ms
      NVIDIA H200, {h200(0)["uuid"]}
      no engine: none is seen to compute on it; without it: its clocks explain nobody's stalls: does the agent run as the engines' user, \
and in their namespace of processes?
✓ gpu 1                    up       17 readings in 1 ms
      NVIDIA L4, {h200(1)["uuid"]}
      no clocks: Not Supported; without it: gpu_clock cannot be told: nobody knows whether the clocks were lowered
      no throttle time: no counter of lowered clocks; without it: gpu_clock cannot be told: between two samples the clocks may have been \
lowered unseen
      no memory temperature: no sensor in its memory
      no engine: none is seen to compute on it; without it: its clocks explain nobody's stalls: does the agent run as the engines' user, \
and in their namespace of processes?
""".splitlines()
