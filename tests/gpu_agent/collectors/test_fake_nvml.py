"""The fake libnvidia-ml with NVIDIA's own bindings: they return the contents of the state file, also after it changes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from helpers.platform.nvml import FakeGpus, build, h200, mig

nv: Any = pytest.importorskip("pynvml")
_XID = 8
_WAIT_S_MAX = 20
# Queries (without the prefix nvmlDeviceGet, with arguments and the member of the result), and the key with their value.
_CALLS = """
    Name=name UUID=uuid PciInfo.busId=pci ClockInfo:1=clock.sm ClockInfo:0=clock.graphics MaxClockInfo:2=clock.mem.max
    CurrentClocksEventReasons=event_reasons SupportedClocksEventReasons=supported_event_reasons SupportedEventTypes=supported_events
    PowerUsage=power_mw EnforcedPowerLimit=power_limit_mw TotalEnergyConsumption=energy_mj ViolationStatus:10.violationTime=violation.10
    Temperature:0=temperature TemperatureV:0=temperature UtilizationRates.gpu=utilization.gpu UtilizationRates.memory=utilization.memory
    PcieReplayCounter=pcie_replay CurrPcieLinkGeneration=pcie.generation CurrPcieLinkWidth=pcie.width NvLinkState:17=nvlink.17
    TotalEccErrors:0:0=ecc.corrected TotalEccErrors:1:1=ecc.uncorrected MemoryInfo.total=memory.total MemoryInfo.free=memory.free
    MemoryInfo:33554472.used=memory.used MemoryInfo:33554472.free=memory.free MemoryInfo:33554472.total=memory.total
""".split()
# Or else a number that fits in 32 bits, and not in 31.
_LONG = dict.fromkeys(("energy_mj", "violation.10", "memory.total", "memory.used", "memory.free", "event_reasons"), 1 << 40)
_VALUES = {"pci": "00000001:AB:1C.0", "temperature": 71, **_LONG}


@pytest.fixture
def gpus(tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    library = tmp_path_factory.getbasetemp() / "libnvidia-ml.so.1"
    world = FakeGpus(library if library.exists() else build(library.parent), tmp_path / "state", h200(0), h200(1))
    world.load(monkeypatch)
    nv.nvmlInit()
    yield world
    nv.nvmlShutdown()


def _ask(call: str, index: int) -> str:
    function, *arguments = call.partition(".")[0].split(":")
    value = getattr(nv, f"nvmlDeviceGet{function}")(nv.nvmlDeviceGetHandleByIndex(index), *map(int, arguments))
    return str(getattr(value, call.partition(".")[2], value))


def _fails(error: type[Exception], call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(error):
        call(*arguments)


@pytest.mark.parametrize("case", _CALLS)
def test_a_call_returns_the_state(gpus: FakeGpus, case: str) -> None:
    """Each value is that of the current file. A failing, missing or lost one is that error, and another GPU has separate values."""
    call, key = case.split("=")
    value: Any = _VALUES.get(key, 3_000_000_000)
    gpus.set(0, {key: value})
    gpus.set(1, {key: value})
    assert _ask(call, 0) == str(value)
    for change, error in (({key: "error 999"}, nv.NVMLError_Unknown), ({"error": nv.NVML_ERROR_GPU_IS_LOST}, nv.NVMLError_GpuIsLost)):
        gpus.set(0, change)
        _fails(error, _ask, call, 0)
    gpus.remove(0, "error", key)
    _fails(nv.NVMLError_NotSupported, _ask, call, 0)
    assert _ask(call, 1) == str(value)


def test_the_machine(gpus: FakeGpus) -> None:
    """Versions and GPUs are those of the file, also in a subprocess. A missing GPU is refused, a removed one is lost, and init can fail."""
    program = "import pynvml as nv; nv.nvmlInit(); print(nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByIndex(1)))"
    run = subprocess.run([sys.executable, "-c", program], env=gpus.environment(), capture_output=True, text=True, timeout=_WAIT_S_MAX)
    assert (run.stdout, run.stderr) == ("NVIDIA H200\n", "")
    assert (nv.nvmlSystemGetDriverVersion(), nv.nvmlSystemGetNVMLVersion()) == ("590.48.01", "13.590.48.01")
    device = nv.nvmlDeviceGetHandleByUUID(h200(1)["uuid"])
    assert (nv.nvmlDeviceGetCount(), nv.nvmlDeviceGetIndex(device), nv.nvmlDeviceGetPciInfo(device).bus) == (2, 1, 28)
    assert nv.nvmlSystemGetCudaDriverVersion() == nv.nvmlSystemGetCudaDriverVersion_v2() == 13010
    _fails(nv.NVMLError_InvalidArgument, nv.nvmlDeviceGetHandleByIndex, 2)
    _fails(nv.NVMLError_NotFound, nv.nvmlDeviceGetHandleByUUID, "GPU-none")
    gpus.remove(1)
    _fails(nv.NVMLError_GpuIsLost, nv.nvmlDeviceGetName, device)
    _fails(ValueError, gpus.set, 0, {"powr_mw": 1})
    nv.nvmlShutdown()
    _fails(nv.NVMLError_Uninitialized, nv.nvmlDeviceGetCount)
    gpus.set(None, {"init_error": nv.NVML_ERROR_DRIVER_NOT_LOADED})
    _fails(nv.NVMLError_DriverNotLoaded, nv.nvmlInit)
    gpus.set(None, {"init_error": 0})
    nv.nvmlInit()


def test_fields_memory_and_processes(gpus: FakeGpus) -> None:
    """A field has separate scope, type, time and code; the older memory call counts reserved memory as used; all processes are returned."""
    device = nv.nvmlDeviceGetHandleByIndex(0)
    gpus.set(0, {"field.74": 1 << 40, "field.82": "66 uint", "field.139.3": "2.5 double", "field.83": "error 999", "timestamp_us": 1234})
    values = nv.nvmlDeviceGetFieldValues(device, [74, (82, 0), (139, 3), (139, 4), 83, 300])
    assert [value.nvmlReturn for value in values] == [0, 0, 0, nv.NVML_ERROR_NOT_SUPPORTED, 999, nv.NVML_ERROR_NOT_SUPPORTED]
    assert (values[0].value.ullVal, values[1].value.uiVal, values[2].value.dVal) == (1 << 40, 66, 2.5)
    assert ([values[i].valueType for i in range(3)], {value.timestamp for value in values}) == ([3, 1, 0], {1234})
    gpus.set(0, {"memory.used": 1 << 36, "memory.reserved": 7, "temperature": -3})
    old, new = nv.nvmlDeviceGetMemoryInfo(device), nv.nvmlDeviceGetMemoryInfo(device, nv.nvmlMemory_v2)
    assert (old.used, new.used, new.reserved, nv.nvmlDeviceGetTemperatureV(device, 0)) == ((1 << 36) + 7, 1 << 36, 7, -3)
    assert nv.nvmlDeviceGetComputeRunningProcesses(device) == []
    gpus.set(0, {"process": ["42 1024", "43", *(f"{pid} 1" for pid in range(100, 130))]})
    for call in (nv.nvmlDeviceGetComputeRunningProcesses, nv.nvmlDeviceGetComputeRunningProcesses_v2):
        first, second, *rest = call(device)
        assert (first.pid, first.usedGpuMemory, second.pid, second.usedGpuMemory, len(rest)) == (42, 1024, 43, None, 30)


def test_mig(gpus: FakeGpus) -> None:
    """MIG devices have separate handles, numbers and values, refer to their GPU and back, and lack the values of a GPU."""
    device = nv.nvmlDeviceGetHandleByIndex(0)
    assert (nv.nvmlDeviceGetMigMode(device), nv.nvmlDeviceGetMaxMigDeviceCount(device)) == ([0, 0], 0)
    gpus.set(0, {"mig": 1, **mig(0), **mig(1), "mig.1.process": ["42 1024"]})
    part = nv.nvmlDeviceGetMigDeviceHandleByIndex(device, 1)
    (process,) = nv.nvmlDeviceGetComputeRunningProcesses(part)
    assert (nv.nvmlDeviceGetGpuInstanceId(part), nv.nvmlDeviceGetComputeInstanceId(part), process.gpuInstanceId) == (8, 0, 8)
    assert (nv.nvmlDeviceGetMigMode(device), nv.nvmlDeviceGetMaxMigDeviceCount(device)) == ([1, 1], 7)
    assert nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(nv.nvmlDeviceGetUUID(part))) == 1
    assert nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)) == h200(0)["uuid"]
    _fails(nv.NVMLError_NotSupported, nv.nvmlDeviceGetPowerUsage, part)
    _fails(nv.NVMLError_NotFound, nv.nvmlDeviceGetMigDeviceHandleByIndex, device, 2)


def test_events(gpus: FakeGpus) -> None:
    """A registered event arrives once, with its device, also for a caller that already waits; others do not, and the wait ends."""
    device, events = nv.nvmlDeviceGetHandleByIndex(0), nv.nvmlEventSetCreate()
    _fails(nv.NVMLError_NotSupported, nv.nvmlDeviceRegisterEvents, device, 1 << 40, events)
    nv.nvmlDeviceRegisterEvents(device, _XID, events)
    for gpu, kind, data in ((1, _XID, 13), (0, 1, 0), (0, _XID, 79)):
        gpus.add_event(gpu, kind, data)
    seen = nv.nvmlEventSetWait_v2(events, 0)
    assert (nv.nvmlDeviceGetIndex(seen.device), seen.eventType, seen.eventData, seen.gpuInstanceId) == (0, _XID, 79, 0xFFFFFFFF)
    later = nv.nvmlEventSetCreate()
    nv.nvmlDeviceRegisterEvents(device, _XID, later)
    for each in (events, later):
        _fails(nv.NVMLError_Timeout, nv.nvmlEventSetWait_v2, each, 10)
    with ThreadPoolExecutor() as others:
        waiting = others.submit(nv.nvmlEventSetWait_v2, events, _WAIT_S_MAX * 1000)
        gpus.add_event(0, _XID, 48, 3, 0)
        assert (waiting.result().eventData, waiting.result().gpuInstanceId) == (48, 3)
    nv.nvmlEventSetFree(events)
    _fails(nv.NVMLError_InvalidArgument, nv.nvmlEventSetWait_v2, events, 0)


def test_a_hung_gpu_blocks_no_other(gpus: FakeGpus) -> None:
    """A call to a GPU that hangs ends after its time or when the file changes; calls to others do not wait for it."""
    device, other = nv.nvmlDeviceGetHandleByIndex(0), nv.nvmlDeviceGetHandleByIndex(1)
    gpus.set(0, {"hang_ms": 30})
    begun = time.monotonic()
    assert nv.nvmlDeviceGetPowerUsage(device) == 350_000 and time.monotonic() - begun >= 0.03
    gpus.set(0, {"hang_ms": _WAIT_S_MAX * 1000, "power_mw": 1})
    with ThreadPoolExecutor() as others:
        hanging = others.submit(nv.nvmlDeviceGetPowerUsage, device)
        assert nv.nvmlDeviceGetPowerUsage(other) == 350_000 and not hanging.done()
        gpus.remove(0, "hang_ms")
        assert hanging.result() == 1
