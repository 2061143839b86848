"""The queries of a GPU with NVIDIA's own bindings: metric, unit and value of each, and missing values."""

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
from legato_gpu_agent.collectors.measurement import UNKNOWN_START, Measurement
from legato_gpu_agent.collectors.nvml import Gpu
from legato_gpu_agent.collectors.nvml_fields import QUERIES, NotSupported, device_identity, field_values

_GIB, _MIB = 1 << 30, 1 << 20
_ALL = 0xFFFFFFFF
_TX, _RX = f"field.138.{_ALL}", f"field.139.{_ALL}"
# An H200 after some hours of work, with a distinct number for each value.
_WORK: dict[str, Value] = {
    **{"clock.sm": 1755, "clock.sm.max": 1980, "clock.mem": 3201, "clock.mem.max": 3202, "clock.graphics": 1, "clock.graphics.max": 2},
    **{"field.74": 5_000_000_000, "field.75": 4_000_000_000, "field.76": 1_000_000, "field.77": 2_500_000_000},
    **{"field.269": 3_250_000_000, "field.270": 750_000_000, "field.271": 1, "field.78": 7, "field.81": 8},
    **{"power_mw": 698_765, "power_limit_mw": 700_000, "energy_mj": (1 << 40) + 1, "temperature": 61, "field.82": "66 uint"},
    **{"utilization.gpu": 97, "utilization.memory": 40, "field.197": 11 * _GIB, "field.198": 7 * _GIB, "pcie_replay": 4},
    **{_TX: 3 * _GIB, _RX: 5 * _GIB, "field.5": 12, "field.6": 2},
}
_EXPECTED = {
    "clocks": [Measurement("hw.gpu.clock.sm", "MHz", 1755)],
    "clock limit": [Measurement("hw.gpu.clock.sm.limit", "MHz", 1980)],
    "memory clock": [Measurement("hw.gpu.clock.memory", "MHz", 3201)],
    "memory clock limit": [Measurement("hw.gpu.clock.memory.limit", "MHz", 3202)],
    "throttle time": [
        Measurement("hw.gpu.throttle.time", "s", seconds, (("reason", reason),), UNKNOWN_START)
        for reason, seconds in (
            *(("board_limit", 2.5), ("power_brake", 1e-9), ("power_cap", 5.0), ("sync_boost", 0.001)),
            *(("thermal_hardware", 0.75), ("thermal_software", 3.25)),
        )
    ],
    "power": [Measurement("hw.power", "W", 698.765)],
    "power limit": [Measurement("hw.power.limit", "W", 700)],
    "energy": [Measurement("hw.energy", "J", ((1 << 40) + 1) / 1000, (), UNKNOWN_START)],
    # Memory reserved by the driver counts as used.
    "memory": [Measurement("hw.gpu.memory.usage", "By", 80 * _GIB + 614 * _MIB), Measurement("hw.gpu.memory.limit", "By", 143_771 * _MIB)],
    "temperature": [Measurement("hw.temperature", "Cel", 61, (("sensor", "gpu"),))],
    "memory temperature": [Measurement("hw.temperature", "Cel", 66, (("sensor", "memory"),))],
    "utilization": [Measurement("hw.gpu.utilization", "1", 0.97)],
    "PCIe traffic": [
        Measurement("hw.gpu.io", "By", 11 * _GIB, (("link", "pcie"), ("network.io.direction", "transmit")), UNKNOWN_START),
        Measurement("hw.gpu.io", "By", 7 * _GIB, (("link", "pcie"), ("network.io.direction", "receive")), UNKNOWN_START),
    ],
    "PCIe replays": [Measurement("hw.errors", "{error}", 4, (("error.type", "pcie_replay"),), UNKNOWN_START)],
    "NVLink traffic": [
        Measurement("hw.gpu.io", "By", 3 * _GIB * 1024, (("link", "nvlink"), ("network.io.direction", "transmit")), UNKNOWN_START),
        Measurement("hw.gpu.io", "By", 5 * _GIB * 1024, (("link", "nvlink"), ("network.io.direction", "receive")), UNKNOWN_START),
    ],
    "ECC errors": [
        Measurement("hw.errors", "{error}", 12, (("error.type", "ecc_corrected"),), UNKNOWN_START),
        Measurement("hw.errors", "{error}", 2, (("error.type", "ecc_uncorrected"),), UNKNOWN_START),
    ],
}
# By query: the keys without which it has no value; and the reason then, where it is not NVML's text.
_KEYS = {
    **{"clocks": ["clock.sm"], "clock limit": ["clock.sm.max"], "memory clock": ["clock.mem"], "memory clock limit": ["clock.mem.max"]},
    **{"throttle time": [f"field.{field}" for field in (74, 75, 76, 77, 269, 270, 271)], "power": ["power_mw"]},
    **{"power limit": ["power_limit_mw"], "energy": ["energy_mj"], "memory": ["memory.used"], "temperature": ["temperature"]},
    **{"memory temperature": ["field.82"], "utilization": ["utilization.gpu"], "PCIe traffic": ["field.197", "field.198"]},
    **{"PCIe replays": ["pcie_replay"], "NVLink traffic": [_TX, _RX], "ECC errors": ["field.5", "field.6"]},
}
_WHY = {
    "throttle time": "no counter of throttled time",
    "memory temperature": "no temperature sensor in its memory",
    "PCIe traffic": "no cumulative counters of PCIe with 64 bits",
    "NVLink traffic": "no counters of NVLink",
    "ECC errors": "no ECC counters: the GPU has no ECC, or it is off",
}


@pytest.fixture
def gpus(tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    library = tmp_path_factory.getbasetemp() / "libnvidia-ml.so.1"
    world = FakeGpus(library if library.exists() else build(library.parent), tmp_path / "state", {**h200(0), **_WORK})
    world.load(monkeypatch)
    nv.nvmlInit()
    yield world
    nv.nvmlShutdown()


def _handle() -> Any:
    return nv.nvmlDeviceGetHandleByIndex(0)


def _values(what: str) -> list[Measurement]:
    return list(QUERIES[what](_handle()))


def _all_but(*missing: str) -> dict[str, list[Measurement]]:
    return {what: _values(what) for what in QUERIES if what not in missing}


def _throttled() -> dict[str, float]:
    return {dict(each_value.attributes)["reason"]: each_value.value for each_value in _values("throttle time")}


def test_every_value_of_an_h200(gpus: FakeGpus) -> None:
    """Each has its metric, unit, value and attributes, and is a counter or a gauge; the device has its identity."""
    assert list(QUERIES) == list(_EXPECTED) == list(_KEYS)
    assert _all_but() == _EXPECTED
    assert device_identity(_handle()) == (h200(0)["uuid"], "NVIDIA H200")


@pytest.mark.parametrize("what", [*_KEYS, "MIG"])
def test_an_unsupported_query_is_made_once(gpus: FakeGpus, what: str) -> None:
    """It is missing, with the reason, until the GPU is opened again; all other values are unaffected."""
    engine_registry: Any = SimpleNamespace(owners_of=lambda pids, **_: ())
    gpu = Gpu(0, str(h200(0)["uuid"]), "NVIDIA H200", engine_registry)
    keys = {key: {**h200(0), **_WORK}[key] for key in _KEYS.get(what, ["mig"])}
    left = sorted((each_value.metric, each_value.value) for other, values in _EXPECTED.items() if other != what for each_value in values)
    gpus.remove(0, *keys)
    for expected in (left, [each for each in left if each[0] != "hw.energy"]):
        assert sorted((each.metric, each.value) for each in gpu.collect(1) if isinstance(each, Measurement)) == expected
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
    [(2, NotSupported), (3, NotSupported), (4, NotSupported), (13, NotSupported), (25, NotSupported), (26, NotSupported)]
    + [(15, nv.NVMLError_GpuIsLost), (16, nv.NVMLError_ResetRequired), (10, nv.NVMLError_Timeout), (999, nv.NVMLError_Unknown)],
)
def test_unsupported_and_failed_queries(gpus: FakeGpus, what: str, code: int, error: type[Exception]) -> None:
    """NVML's codes for an unsupported value raise `NotSupported`; any other code is a fault and raised, for fields and calls."""
    gpus.set(0, {key: f"error {code}" for key in _KEYS[what]})
    with pytest.raises(error):
        _values(what)
    assert _all_but(what) == {other: values for other, values in _EXPECTED.items() if other != what}


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
def test_a_missing_field_affects_no_other(gpus: FakeGpus, what: str, key: str, value: str | None, left: list[int]) -> None:
    """Of a query with several fields the existing ones are returned, never under the name of another."""
    if value is None:
        gpus.remove(0, key)
    else:
        gpus.set(0, {key: value})
    assert _values(what) == [_EXPECTED[what][place] for place in left]


@pytest.mark.parametrize("driver", ["575.51", "575.51.03", "580.65.06", "580.81.99", "470.256.02", "no version", None])
def test_an_older_driver_is_not_queried_for_renumbered_fields(gpus: FakeGpus, driver: str | None) -> None:
    """Before 580.82, or with an unknown version, fields 269 to 271 are not throttled time; 74 to 77 are."""
    if driver is None:
        gpus.remove(None, "driver")
    else:
        gpus.set(None, {"driver": driver})
    assert _throttled() == {"power_cap": 5.0, "thermal": 4.0, "sync_boost": 0.001, "board_limit": 2.5}
    gpus.remove(0, *(f"field.{field}" for field in (74, 75, 76, 77)))
    with pytest.raises(NotSupported, match="no counter of throttled time"):
        _values("throttle time")


@pytest.mark.parametrize("driver", ["580.82", "580.82.07", "580.159.04", "590.48.01", "1000.1"])
def test_a_newer_driver_has_finer_thermal_reasons(gpus: FakeGpus, driver: str) -> None:
    """From 580.82 on they replace the coarse one, which would count them twice."""
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
def test_thermal_throttling_is_counted_once(gpus: FakeGpus, absent: list[int], heat: dict[str, float]) -> None:
    """The coarse reason is used if and only if no finer one exists."""
    gpus.remove(0, *(f"field.{field}" for field in absent))
    assert _throttled() == {"power_cap": 5.0, "sync_boost": 0.001, "board_limit": 2.5, **heat}


@pytest.mark.parametrize(
    ("text", "value"),
    [("66 uint", 66), ("4294967295 uint", 4294967295), ("66 ulong", 66), ("66 ull", 66), ("18446744073709551615 ull", 2.0**64)]
    + [("-4 int", -4), ("-4 sll", -4), ("65535 ushort", 65535), ("66.5 double", 66.5)],
)
def test_a_field_is_read_by_its_type(gpus: FakeGpus, text: str, value: float) -> None:
    """A value is that of the member that the driver filled, for any contents of the others."""
    gpus.set(0, {"field.82": text})
    assert field_values(_handle(), ["NVML_FI_DEV_MEMORY_TEMP"]) == {"NVML_FI_DEV_MEMORY_TEMP": value}


def test_pcie_counters_of_32_bits_are_not_reported(gpus: FakeGpus) -> None:
    """They overflow many times between two samples (a recorded H100 has them); one with 64 bits beside them is reported."""
    gpus.set(0, {"field.197": f"{_GIB} uint"})
    assert _values("PCIe traffic") == _EXPECTED["PCIe traffic"][1:]
    gpus.set(0, {"field.198": f"{_GIB} uint"})
    with pytest.raises(NotSupported, match="no cumulative counters of PCIe with 64 bits"):
        _values("PCIe traffic")


def test_fields_unknown_to_the_bindings(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field without a number in these bindings is left out, others keep their values; without any field no query is made."""
    monkeypatch.delattr(nv, "NVML_FI_DEV_ECC_SBE_AGG_TOTAL")
    assert _values("ECC errors") == _EXPECTED["ECC errors"][1:]
    monkeypatch.delattr(nv, "NVML_FI_DEV_ECC_DBE_AGG_TOTAL")
    handle = _handle()
    gpus.set(0, {"error": 999})
    with pytest.raises(NotSupported, match="no ECC counters"):
        list(QUERIES["ECC errors"](handle))
    assert field_values(handle, []) == {}


def test_the_older_call_for_the_temperature(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used if driver or bindings lack the newer call; it does not hide a fault of the newer one."""

    def refused(code: int) -> None:
        def call(*_: Any) -> int:
            raise nv.NVMLError(code)

        monkeypatch.setattr(nv, "nvmlDeviceGetTemperatureV", call)

    for code in (nv.NVML_ERROR_FUNCTION_NOT_FOUND, nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nv.NVML_ERROR_NOT_SUPPORTED):
        refused(code)
        assert _values("temperature") == _EXPECTED["temperature"]
    refused(nv.NVML_ERROR_UNKNOWN)
    with pytest.raises(nv.NVMLError_Unknown):
        _values("temperature")
    monkeypatch.delattr(nv, "nvmlDeviceGetTemperatureV")
    assert _values("temperature") == _EXPECTED["temperature"]


def test_names_in_bytes(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the bindings become text, for any contents."""
    monkeypatch.setattr(nv, "nvmlDeviceGetUUID", lambda _: b"GPU-1")
    monkeypatch.setattr(nv, "nvmlDeviceGetName", lambda _: b"NVIDIA \xff")
    monkeypatch.setattr(nv, "nvmlSystemGetDriverVersion", lambda: b"575.51")
    assert device_identity(_handle()) == ("GPU-1", "NVIDIA \N{REPLACEMENT CHARACTER}")
    assert "thermal" in _throttled()


def test_a_lost_gpu_returns_nothing(gpus: FakeGpus) -> None:
    """Every query of a GPU that fell off the bus raises that, and none counts as unsupported."""
    handle = _handle()
    gpus.set(0, {"error": nv.NVML_ERROR_GPU_IS_LOST})
    for ask in QUERIES.values():
        with pytest.raises(nv.NVMLError_GpuIsLost):
            list(ask(handle))


def test_the_report_names_missing_values(gpus: FakeGpus, tmp_path: pathlib.Path) -> None:
    """`legato-gpu-agent --once --print` names each GPU, its missing values and what they leave unknown, or that there is no driver."""
    gpus.set(1, {**h200(1), "name": "NVIDIA L4"})
    gpus.remove(1, "clock.sm", "field.82", *_KEYS["throttle time"])
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    environ = {**os.environ, "LEGATO_PROC_PATH": "/proc", "LEGATO_ENGINE_SCAN": "0", "LEGATO_HOST_NAME": "node-7"}
    command = [sys.executable, "-m", "legato_gpu_agent", "--once", "--print"]
    text = []
    for more in (gpus.environment(), {"LD_LIBRARY_PATH": str(tmp_path)}):
        run = subprocess.run(command, env={**environ, **more}, capture_output=True, text=True, timeout=120, check=False)
        assert run.stderr == ""
        text.append(run.stdout.partition("\nsteps: ")[0])
    of_gpus = re.sub(r"\d+\.\d ms$", "1 ms", text[0][text[0].index("✓ gpu 0") :], flags=re.MULTILINE)
    assert of_gpus.splitlines() == _REPORT
    assert "✓ gpus                     up       1 measurements in " in text[0]
    assert "\n– gpus                     absent   no libnvidia-ml.so.1: this host has no NVIDIA driver, or" in text[1]
    assert "\n      unknown without it: the cause gpu_clock; time lost to throttling is charged to host\n" in text[1]


_NO_OWNER = (
    "      no engine: no process of an engine is visible on it; its throttling explains no stall: does the agent run as the engines' user, "
    "and in their PID namespace?"
)
_REPORT = f"""\
✓ gpu 0                    up       24 measurements in 1 ms
      NVIDIA H200, {h200(0)["uuid"]}
{_NO_OWNER}
✓ gpu 1                    up       16 measurements in 1 ms
      NVIDIA L4, {h200(1)["uuid"]}
      no clocks: Not Supported; unknown without it: whether the GPU was throttled (cause gpu_clock)
      no throttle time: no counter of throttled time; unknown without it: whether the GPU was throttled between two samples \
(cause gpu_clock)
      no memory temperature: no temperature sensor in its memory
{_NO_OWNER}
""".splitlines()
