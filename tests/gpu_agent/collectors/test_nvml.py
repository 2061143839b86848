"""The GPU collectors with NVIDIA's own bindings, while some GPUs throttle, hang, fail or fall off the bus."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pynvml as nv
import pytest

from helpers.platform.nvml import FakeGpus, build, h200, mig
from helpers.servers.waiting import until
from legato_gpu_agent.agent import collector_runner as runner_module
from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_runner import CollectorRunner
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.collectors import nvml
from legato_gpu_agent.collectors.base import Collector, NotAvailable
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.collectors.nvml import Gpu, GpuDiscovery, GpuErrors, Nvml

_S = 1_000_000_000
_NOW = 1_700_000_000 * _S
_LOST, _XID = 15, 8
_FIRST, _SECOND = str(h200(0)["uuid"]), str(h200(1)["uuid"])
_THROTTLE = [f"field.{field}" for field in (74, 75, 76, 77, 269, 270, 271)]


@pytest.fixture
def gpus(tmp_path_factory: pytest.TempPathFactory, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    library = tmp_path_factory.getbasetemp() / "libnvidia-ml.so.1"
    world = FakeGpus(library if library.exists() else build(library.parent), tmp_path / "state", h200(0), h200(1))
    world.load(monkeypatch)
    yield world
    world.set(None, {"error": 0})
    with contextlib.suppress(nv.NVMLError_Uninitialized):
        while True:
            nv.nvmlShutdown()


class Owners:
    """An engine registry with given processes."""

    def __init__(self, engines: dict[int, str] | None = None) -> None:
        self.engines, self.calls = engines or {}, 0

    def owners_of(self, pids: Sequence[int], is_part: bool = False) -> tuple[str, ...]:
        self.calls += 1
        return tuple(sorted({self.engines[pid] for pid in pids if pid in self.engines}))


def _gpu(index: int = 0, owners: Owners | None = None) -> Gpu:
    Nvml().init()
    return Gpu(index, (_FIRST, _SECOND)[index], "NVIDIA H200", cast(Any, owners or Owners()))


def _runner(collector: Collector) -> CollectorRunner:
    return CollectorRunner(collector, Buffer(), SelfMetrics())


def _read(collector: Collector, now_ns: int = _NOW) -> list[Measurement]:
    found = list(collector.collect(now_ns))
    readings = [each for each in found if isinstance(each, Measurement)]
    assert readings == found
    return readings


def _of(readings: list[Measurement], metric: str, **attributes: str) -> list[Measurement]:
    return [each for each in readings if each.metric == metric and attributes.items() <= dict(each.attributes).items()]


def test_a_gpu_shared_by_two_engines_names_both(gpus: FakeGpus) -> None:
    """Its measurements name no engine, and further ones name both. With one owner the measurements name it."""
    owners = Owners({42: "127.0.0.1:8000", 43: "127.0.0.1:8001"})
    gpus.set(0, {"process": ["42 1024", "43 1024"]})
    gpu = _gpu(0, owners)
    readings = _read(gpu)
    values = [dict(each.attributes) for each in _of(readings, "legato.gpu.engine")]
    assert values == [{"hw.id": _FIRST, "legato.engine.id": engine} for engine in owners.engines.values()]
    assert all("legato.engine.id" not in dict(each.attributes) for each in readings if each.metric != "legato.gpu.engine")
    assert gpu.owners == tuple(owners.engines.values())
    del owners.engines[43]
    for _ in range(10):
        readings = _read(gpu)
    assert not _of(readings, "legato.gpu.engine") and gpu.owners == ("127.0.0.1:8000",)


def test_measurements_name_the_device(gpus: FakeGpus) -> None:
    """Every measurement has the device's id, model and name, only counters have a start, and none is repeated."""
    readings = _read(_gpu(1))
    own = {"hw.id": _SECOND, "hw.model": "NVIDIA H200", "hw.name": "GPU 1"}
    assert all(own.items() <= dict(each.attributes).items() and list(each.attributes) == sorted(each.attributes) for each in readings)
    assert len({(each.metric, each.attributes) for each in readings}) == len(readings) == 25
    counters = {each.metric for each in readings if each.start_ns}
    assert counters == {"hw.gpu.throttle.time", "hw.energy", "hw.gpu.io", "hw.errors"}
    assert {(each.metric in counters, each.start_ns) for each in readings} == {(True, _NOW), (False, None)}
    assert not any("legato.engine.id" in dict(each.attributes) for each in readings)


def test_a_gpu_that_throttles(gpus: FakeGpus) -> None:
    """Throttled time grows in seconds by reason; a counter that went back starts when it was last seen, and the others keep their start."""
    gpu, values = _gpu(), []
    for second, (power_ns, heat_ns) in enumerate([(10**9, 0), (3 * 10**9, 250_000_000), (10**8, 250_000_000), (10**8, 10**9)]):
        gpus.set(0, {"field.74": power_ns, "field.269": heat_ns})
        values.append(_read(gpu, _NOW + second * _S))
    series = [[_of(each, "hw.gpu.throttle.time", reason=reason)[0] for each in values] for reason in ("power_cap", "thermal_software")]
    assert [[one.value for one in each] for each in series] == [[1.0, 3.0, 0.1, 0.1], [0.0, 0.25, 0.25, 1.0]]
    assert [[((one.start_ns or 0) - _NOW) // _S for one in each] for each in series] == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_slow_values_are_read_less_often(gpus: FakeGpus) -> None:
    """Ten times a second a GPU returns clocks, throttled time, power and use, all other values once a second, the energy every ten."""
    gpu = Gpu(0, _FIRST, "NVIDIA H200", cast(Any, Owners()), every_s=0.1)
    Nvml().init()
    values = [{each.metric.removeprefix("hw.") for each in _read(gpu)} for _ in range(101)]
    often = {"gpu.clock.sm", "gpu.clock.memory", "gpu.throttle.time", "power", "gpu.utilization"}
    assert [each == often for each in values] == [False, *[True] * 9] * 10 + [False]
    assert all(often < each and len(each) > 11 for each in values[::10])
    assert [place for place, each in enumerate(values) if "energy" in each] == [0, 100]


@pytest.mark.parametrize(("every_s", "rounds"), [(0.15, 70), (0.4, 27), (0.7, 16), (3.0, 4), (15.0, 1)])
def test_the_energy_is_read_each_ten_seconds_or_soon_after(gpus: FakeGpus, every_s: float, rounds: int) -> None:
    """In a round with all values, for any interval."""
    gpu = Gpu(0, _FIRST, "NVIDIA H200", cast(Any, Owners()), every_s=every_s)
    Nvml().init()
    assert [place for place in range(2 * rounds + 1) if len(_read(gpu)) == 25] == [0, rounds, 2 * rounds]


def test_a_gpu_without_any_value_is_down(gpus: FakeGpus) -> None:
    """But not in the rounds in between, which read few values."""
    gpu = Gpu(0, _FIRST, "NVIDIA H200", cast(Any, Owners()), every_s=0.3)
    Nvml().init()
    gpus.set(0, {key: "error 999" for key in h200(0) if key not in ("name", "uuid", "pci") and "memory" not in key})
    values = [[each.metric for each in _read(gpu)] for _ in range(5)]
    assert values == [["hw.gpu.memory.usage", "hw.gpu.memory.limit"], [], [], [], ["hw.gpu.memory.usage", "hw.gpu.memory.limit"]]


def test_a_failed_query_affects_no_other(gpus: FakeGpus) -> None:
    """The value is reported as missing, and the query repeated in the next round; a GPU without any other value is down."""
    gpu = _gpu()
    gpus.set(0, {"power_mw": "error 999", **dict.fromkeys(_THROTTLE, "error 999"), "mig": "error 999"})
    assert (len(_read(gpu)), gpu.missing) == (18, dict.fromkeys(("throttle time", "power", "MIG"), "Unknown Error"))
    gpus.remove(0, *_THROTTLE)
    gpus.set(0, {"power_mw": 350_000, "mig": 0})
    for _ in range(2):
        assert (len(_read(gpu)), gpu.missing) == (18, {"throttle time": "no counter of throttled time"})
        gpus.set(0, dict.fromkeys(_THROTTLE, 1))
    gpus.set(0, {key: "error 999" for key in h200(0) if key not in ("name", "uuid", "pci")})
    status = _runner(gpu).run_once()
    assert (status.state, status.why) == ("down", "NVMLError_Unknown: Unknown Error")


def test_a_gpu_that_falls_off_the_bus(gpus: FakeGpus) -> None:
    """Only this GPU is down, with the reason. When it is back, under any index, it is read again, and its counters continue."""
    first, second = _runner(_gpu(0)), _runner(_gpu(1))
    (before,) = _of(_read(first.collector), "hw.energy")
    lost, broken = "NVMLError_GpuIsLost: GPU is lost", "NVMLError_ResetRequired: GPU requires restart"
    for key, value, why in (("power_mw", f"error {_LOST}", lost), ("error", 16, broken), ("error", _LOST, lost)):
        gpus.set(0, {key: value})
        for _ in range(2):
            status = first.run_once()
            assert (status.state, status.why, status.measurements, second.run_once().state) == ("down", why, 0, "up")
    gpus.set(0, {"error": 0, "uuid": _SECOND, "power_mw": 2_000})
    gpus.set(1, {"uuid": _FIRST, "power_mw": 1_000, "energy_mj": 123_456_790})
    found = _read(first.collector, _NOW + _S)
    (after,) = _of(found, "hw.energy")
    assert (len(found), _of(found, "hw.power")[0].value) == (25, 1.0)
    assert (after.attributes, after.start_ns, after.value > before.value) == (before.attributes, _NOW, True)


def test_a_gpu_that_hangs(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own runner reports the hang while the other GPU continues; when the driver returns, it is up."""
    monkeypatch.setattr(runner_module, "_HANGS_S", 0.05)
    first, second = _runner(_gpu(0)), _runner(_gpu(1))
    first.collector.every_s = 0.01
    gpus.set(0, {"hang_ms": 60_000})
    with ThreadPoolExecutor() as extra:
        try:
            hanging = extra.submit(first.run_once)
            until(lambda: first.status().state == "hanging")
            assert first.status().why.startswith("its round has been running for ")
            assert (second.run_once().state, second.status().state, hanging.done()) == ("up", "up", False)
        finally:
            gpus.remove(0, "hang_ms")
        assert hanging.result().state == first.status().state == "up"


def test_no_driver(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, or with a driver that is not loaded, GPUs and errors are not available; afterwards they are found."""
    added: list[Collector] = []
    driver, engine_registry = Nvml(), cast(Any, Owners())
    both = _runner(GpuDiscovery(driver, engine_registry, added.append)), _runner(GpuErrors(driver, every_s=0.01))
    with monkeypatch.context() as without:
        without.setattr(nv, "nvmlLib", None)
        without.setattr(nv, "CDLL", lambda name: open(f"/nowhere/{name}"))
        why = "no libnvidia-ml.so.1: this host has no NVIDIA driver, or the container was not given it"
        assert [(status.state, status.why) for status in (each.run_once() for each in both)] == [("absent", why)] * 2
    gpus.set(None, {"init_error": nv.NVML_ERROR_DRIVER_NOT_LOADED})
    assert [(status.state, status.why) for status in (each.run_once() for each in both)] == [
        ("absent", "the NVIDIA driver is not loaded")
    ] * 2
    gpus.set(None, {"init_error": nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH})
    assert ([each.run_once().state for each in both], added) == (["down"] * 2, [])
    gpus.set(None, {"init_error": 0})
    assert [each.run_once().state for each in both] == ["up"] * 2
    assert [each.name for each in added] == ["gpu 0", "gpu 1"]


def test_nvml_is_initialised_once(gpus: FakeGpus) -> None:
    """For any number of threads, one session is opened."""
    driver = Nvml()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: driver.init(), range(32))) == [None] * 32
    nv.nvmlShutdown()
    with pytest.raises(nv.NVMLError_Uninitialized):
        nv.nvmlShutdown()


def test_discovery_adds_each_gpu_once(gpus: FakeGpus) -> None:
    """GPUs that appear later are added then; one that fails is added once it succeeds; a driver without a GPU is not available."""
    added: list[Any] = []
    discovery = GpuDiscovery(Nvml(), cast(Any, Owners()), added.append, 0.25)
    gpus.set(1, {"error": _LOST})
    counted = Measurement("legato.agent.gpus", "{gpu}", 2.0)
    assert [_read(discovery), _read(discovery), [each.uuid for each in added]] == [[counted], [counted], [_FIRST]]
    gpus.remove(1, "error")
    gpus.set(2, {**h200(2), "name": "NVIDIA L4"})
    assert _read(discovery)[0].value == _read(discovery)[0].value == 3.0
    assert [(each.name, each.model, each.every_s) for each in added[1:]] == [("gpu 1", "NVIDIA H200", 0.25), ("gpu 2", "NVIDIA L4", 0.25)]
    for gpu in (0, 1, 2):
        gpus.remove(gpu)
    with pytest.raises(NotAvailable, match="^the NVIDIA driver reports no GPU$"):
        _read(discovery)


def test_mig(gpus: FakeGpus) -> None:
    """Each instance has its memory under its id and its GPU's, and its own processes; a removed one affects no other."""
    gpus.set(0, {"mig": 1, **mig(0), **mig(2), **mig(3), "mig.2.process": ["42 1024"], "process": ["41", "42"], "mig.3.name": "error 4"})
    gpu = _gpu(0, Owners({42: "127.0.0.1:8000", 41: "127.0.0.1:8001"}))
    readings = [each for each in _read(gpu) if "hw.parent" in dict(each.attributes)]
    own = {"hw.parent": _FIRST, "hw.model": "NVIDIA H200 MIG 1g.18gb"}
    ids = [{**own, "hw.id": str(mig(0)["mig.0.uuid"])}, {**own, "hw.id": str(mig(2)["mig.2.uuid"]), "legato.engine.id": "127.0.0.1:8000"}]
    expected = [(name, "By", one, None) for one in ids for name in ("hw.gpu.memory.usage", "hw.gpu.memory.limit")]
    assert [(each.metric, each.unit, dict(each.attributes), each.start_ns) for each in readings] == expected
    assert [each.value for each in readings] == [(2 << 30) + (16 << 20), 16 << 30] * 2
    assert gpu.missing == {"MIG instance": "Insufficient Permissions"}
    gpus.remove(0, *mig(0), *mig(3))
    assert len(_of(_read(gpu), "hw.gpu.memory.usage", **{"hw.parent": _FIRST})) == 1 and gpu.missing == {}


def test_the_owner_of_a_gpu(gpus: FakeGpus) -> None:
    """All its measurements name the engine with processes on it; that is looked up every tenth round, and after the GPU was lost."""
    owners = Owners({42: "127.0.0.1:8000", 43: "127.0.0.1:8001"})
    gpu = _gpu(0, owners)

    def owner() -> set[str | None]:
        return {dict(each.attributes).get("legato.engine.id") for each in _read(gpu)}

    gpus.set(0, {"process": ["7 1024", "42 2048"]})
    assert owner() == {"127.0.0.1:8000"}
    gpus.set(0, {"process": ["43"]})
    assert ([owner() for _ in range(10)], owners.calls) == ([{"127.0.0.1:8000"}] * 9 + [{"127.0.0.1:8001"}], 2)
    gpus.set(0, {"process": "error 4", "error": _LOST})
    assert _runner(gpu).run_once().state == "down"
    gpus.set(0, {"error": 0})
    assert owner() == {None}


def _errors(collector: GpuErrors, now_ns: int = _NOW) -> dict[tuple[str, str], float]:
    readings = _read(collector, now_ns)
    assert {(each.metric, each.unit, each.start_ns) for each in readings} <= {("hw.errors", "{error}", _NOW)}
    return {(dict(each.attributes)["hw.id"], dict(each.attributes)["error.type"]): each.value for each in readings}


def test_xid_errors(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted by device and number; other events are not. A GPU lost in the meantime is named, an unknown device is ''."""
    errors = GpuErrors(Nvml(), every_s=0.01)
    assert _errors(errors) == {}
    for gpu, kind, number in ((0, _XID, 31), (0, _XID, 31), (1, _XID, 13), (0, 1, 5)):
        gpus.add_event(gpu, kind, number)
    values = {(_FIRST, "xid_31"): 2.0, (_SECOND, "xid_13"): 1.0}
    assert _errors(errors, _NOW + 1) == _errors(errors, _NOW + 2) == values
    gpus.set(1, {"error": _LOST})
    gpus.add_event(1, _XID, 79)
    assert _errors(errors, _NOW + 3) == (values := {**values, (_SECOND, "xid_79"): 1.0})
    nobodys = iter([nv.c_nvmlEventData_t(eventType=_XID, eventData=119)])
    wait = nv.nvmlEventSetWait_v2
    monkeypatch.setattr(nv, "nvmlEventSetWait_v2", lambda *given: next(nobodys, None) or wait(*given))
    assert _errors(errors, _NOW + 4) == {**values, ("", "xid_119"): 1.0}


def test_waiting_for_errors_ends_with_the_round(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of errors a round takes no longer than its bound; the rest is counted in the next one."""
    errors, clock, allowed_ms = GpuErrors(Nvml(), every_s=1.0), SimpleNamespace(now_s=5.0), []

    def one_more(_: Any, most_ms: int) -> Any:
        clock.now_s += 0.3
        allowed_ms.append(most_ms)
        if not most_ms:
            raise nv.NVMLError(nv.NVML_ERROR_TIMEOUT)
        return nv.c_nvmlEventData_t(device=nv.nvmlDeviceGetHandleByIndex(0), eventData=94)

    with monkeypatch.context() as busy:
        busy.setattr(nvml, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
        busy.setattr(nv, "nvmlEventSetWait_v2", one_more)
        assert _errors(errors) == {(_FIRST, "xid_94"): 3.0}
    assert allowed_ms == pytest.approx([800, 500, 200, 0], abs=1)
    errors.every_s = 0.01
    for _ in range(300):
        gpus.add_event(0, _XID, 94)
    assert [_errors(errors)[_FIRST, "xid_94"] for _ in range(3)] == [259, 303, 303]


def test_gpus_that_do_not_report_errors(gpus: FakeGpus) -> None:
    """Without any GPU that reports errors they are not available; a GPU that appears or returns is registered from then on."""
    errors = GpuErrors(Nvml(), every_s=0.01)
    gpus.remove(0, "supported_events")
    gpus.set(1, {"error": _LOST})
    for _ in range(70):
        with pytest.raises(NotAvailable, match="^no GPU reports XID errors$"):
            _read(errors)
    gpus.set(0, {"supported_events": 0x11B})
    assert _errors(errors) == {}
    gpus.set(1, {"error": 0})
    assert _errors(errors) == {}
    gpus.add_event(1, _XID, 48)
    assert _errors(errors) == {(_SECOND, "xid_48"): 1.0}


def test_a_failing_wait(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is down while that lasts and occupies nothing in the driver; then the counts continue, even without a GPU."""
    errors, wait = GpuErrors(Nvml(), every_s=0.01), nv.nvmlEventSetWait_v2
    for count in (1.0, 2.0):
        monkeypatch.setattr(nv, "nvmlEventSetWait_v2", wait)
        gpus.set(0, {"error": 0})
        _read(errors)
        gpus.add_event(0, _XID, 79)
        assert _errors(errors, _NOW + _S) == {(_FIRST, "xid_79"): count}
        monkeypatch.setattr(nv, "nvmlEventSetWait_v2", lambda *_: nv._nvmlCheckReturn(_LOST))
        assert {_runner(errors).run_once().why for _ in range(70)} == {"NVMLError_GpuIsLost: GPU is lost"}
    for gpu in (0, 1):
        gpus.set(gpu, {"error": _LOST})
    assert _errors(errors, _NOW + 2 * _S) == {(_FIRST, "xid_79"): 2.0}
