"""Collectors of GPUs: one discovers them, one per GPU reads it, one counts XID errors.

Each GPU has a separate collector, so one that hangs or fell off the bus does not affect the others; it is looked up by its UUID and works
again when it is back. The owner of a GPU is the engine with processes on it. If several engines share a GPU, its measurements name no
engine, and an additional measurement names each of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from legato_gpu_agent.collectors.base import Collector, NotAvailable
from legato_gpu_agent.collectors.counter_starts import CounterStarts
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.measurement import Attributes, Measured, Measurement
from legato_gpu_agent.collectors.nvml_fields import FREQUENT, QUERIES, RARE, NotSupported, call, device_identity

__all__ = ["Gpu", "GpuDiscovery", "GpuErrors", "Nvml"]

_OWNER_EVERY, _ALL_EVERY_S, _RARE_EVERY_S = 10, 1.0, 10.0
_MIG_MAX = 8
_ERRORS_PER_ROUND_MAX = 256
_OLD_SETS_MAX = 16
# Codes after which no query of the device succeeds. Any other fault concerns one query only.
_LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
)
_NO_DRIVER = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no libnvidia-ml.so.1: this host has no NVIDIA driver, or the container was not given it",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
}


class Nvml:
    """The NVML library, initialised once per process. Safe for several threads."""

    def __init__(self) -> None:
        self._lock, self._initialised = threading.Lock(), False

    def init(self) -> None:
        """Initialise NVML if it is not yet. Raises ``NotAvailable`` without a driver."""
        with self._lock:
            if self._initialised:
                return
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                if error.value in _NO_DRIVER:
                    raise NotAvailable(_NO_DRIVER[error.value]) from None
                raise
            self._initialised = True


class GpuDiscovery:
    """Finds the GPUs of the node and adds a collector for each new one, by calling ``add``."""

    name, every_s = "gpus", 60.0

    def __init__(self, nvml: Nvml, engine_registry: EngineRegistry, add: Callable[[Collector], None], gpu_every_s: float = 1.0) -> None:
        self._nvml, self._engine_registry, self._add, self._gpu_every_s = nvml, engine_registry, add, gpu_every_s
        self._known: set[str] = set()

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield the number of GPUs. Raises ``NotAvailable`` without a driver or a GPU."""
        self._nvml.init()
        count = pynvml.nvmlDeviceGetCount()
        if not count:
            raise NotAvailable("the NVIDIA driver reports no GPU")
        self._engine_registry.gpus = count
        for index in range(count):
            try:
                uuid, model = device_identity(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError:
                # The GPU fell off the bus: its collector, if it had one, reports that.
                continue
            if uuid not in self._known:
                self._known.add(uuid)
                self._add(Gpu(index, uuid, model, self._engine_registry, self._gpu_every_s))
        yield Measurement("legato.agent.gpus", "{gpu}", float(count))


class Gpu:
    """One GPU. Each round reads the values that can slow a step down; the others are read at most once a second, costly ones every ten.

    ``missing``: queries without a value, with the reason; permanent for an unsupported query, until the next success for a failed one.
    ``owners``: the engines with processes on the GPU or on one of its MIG instances.
    """

    def __init__(self, index: int, uuid: str, model: str, engine_registry: EngineRegistry, every_s: float = 1.0) -> None:
        self.name, self.every_s = f"gpu {index}", every_s
        self.uuid, self.model = uuid, model
        self.missing: dict[str, str] = {}
        self._own = (("hw.id", uuid), ("hw.model", model), ("hw.name", f"GPU {index}"))
        self._engine_registry, self._counters = engine_registry, CounterStarts()
        self._handle: Any = None
        self.owners: tuple[str, ...] = ()
        self._direct: tuple[str, ...] = ()
        self._round = 0
        # In rounds; the rare values are read in a round with all others.
        self._all_every = math.ceil(_ALL_EVERY_S / every_s)
        self._rare_every = self._all_every * math.ceil(_RARE_EVERY_S / (self._all_every * every_s))
        self._failed: set[str] = set()

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield the values of the GPU. Raises ``pynvml.NVMLError`` if it is lost or returns no value."""
        try:
            yield from list(self._read(now_ns))
        except pynvml.NVMLError:
            self._handle = None
            raise

    def _read(self, now_ns: int) -> Iterator[Measured]:
        if self._handle is None:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
            self.missing.clear()
            self._round = 0
        if self._round % _OWNER_EVERY == 0:
            self._direct = self._engine_registry.owners_of(_pids(self._handle))
        with_all, with_rare = not self._round % self._all_every, not self._round % self._rare_every
        self._round += 1
        tenants: set[str] = set()
        count, fault = 0, None
        for what in (*QUERIES, "MIG") if with_all else FREQUENT:
            if (what in self.missing and what not in self._failed) or (what in RARE and not with_rare):
                continue
            try:
                found = list(self._instances(now_ns, tenants) if what == "MIG" else self._query(what, now_ns))
            except NotSupported as error:
                self._failed.discard(what)
                self.missing[what] = str(error)
                continue
            except pynvml.NVMLError as error:
                if error.value in _LOST:
                    raise
                self._failed.add(what)
                self.missing[what], fault = str(error), error
                continue
            self._failed.discard(what)
            self.missing.pop(what, None)
            count += len(found)
            yield from found
        if fault is not None and not count and with_all:
            raise fault
        if with_all:
            self.owners = tuple(sorted({*self._direct, *tenants}))
            yield from self._shared()

    def _query(self, what: str, now_ns: int) -> Iterator[Measured]:
        for found in QUERIES[what](self._handle):
            yield self._complete(found, self._own, now_ns, self._direct)

    def _shared(self) -> Iterator[Measured]:
        """Yield the owners of the GPU if its measurements do not name them."""
        if self.owners != self._direct or len(self.owners) > 1:
            for owner in self.owners:
                yield Measurement("legato.gpu.engine", "1", 1.0, (("hw.id", self.uuid), ("legato.engine.id", owner)))

    def _instances(self, now_ns: int, tenants: set[str]) -> Iterator[Measured]:
        """Yield the memory of each MIG instance; all other values are those of the GPU. Adds the owners to ``tenants``."""
        if not call(pynvml.nvmlDeviceGetMigMode, self._handle)[0]:
            return
        self.missing.pop("MIG instance", None)
        for place in range(min(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, self._handle), _MIG_MAX)):
            try:
                instance = call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self._handle, place)
                uuid, model = call(device_identity, instance)
                memory = list(QUERIES["memory"](instance))
            except pynvml.NVMLError_NotFound:
                continue
            except NotSupported as error:
                # The instance may just have been removed; the others still exist, and a new one may follow.
                self.missing["MIG instance"] = str(error)
                continue
            own = (("hw.id", uuid), ("hw.model", model), ("hw.parent", self.uuid))
            owners = self._engine_registry.owners_of(_pids(instance), is_part=True)
            tenants.update(owners)
            for found in memory:
                yield self._complete(found, own, now_ns, owners)

    def _complete(self, found: Measurement, own: Attributes, now_ns: int, owners: tuple[str, ...]) -> Measurement:
        """Return the measurement with the attributes of the device and of its only owner, and with the start of a counter."""
        owner = (("legato.engine.id", owners[0]),) if len(owners) == 1 else ()
        attributes = tuple(sorted((*own, *found.attributes, *owner)))
        start_ns = self._counters.start_ns((found.metric, attributes), found.value, now_ns) if found.start_ns is not None else None
        return Measurement(found.metric, found.unit, found.value, attributes, start_ns)


class GpuErrors:
    """XID errors that the driver reports, counted by device and number."""

    name = "gpu errors"

    def __init__(self, nvml: Nvml, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._nvml = nvml
        self._set: Any = None
        self._registered: set[int] = set()
        self._uuids: dict[int, str] = {}
        self._seen: dict[tuple[str, int], int] = {}
        self._start_ns = 0
        self._old: list[Any] = []

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield the errors so far, after waiting for new ones during 80 % of the interval.

        Raises ``NotAvailable`` if no GPU reports errors.
        """
        self._nvml.init()
        # The counts continue when the event set is replaced, so their start stays the same.
        self._start_ns = self._start_ns or now_ns
        try:
            if self._register():
                self._wait()
        except pynvml.NVMLError:
            self._discard_set()
            raise
        if not self._registered and not self._seen:
            raise NotAvailable("no GPU reports XID errors")
        for (uuid, number), count in self._seen.items():
            yield Measurement("hw.errors", "{error}", float(count), (("error.type", f"xid_{number}"), ("hw.id", uuid)), self._start_ns)

    def _register(self) -> bool:
        """Register for the errors of all GPUs; return whether any reports them. A GPU that failed is retried in the next round."""
        # The driver has room for a limited number of sets: those that it could not free because of an error are freed first.
        self._old = [old for old in self._old if not _freed(old)][-_OLD_SETS_MAX:]
        if self._set is None:
            self._set, self._registered = pynvml.nvmlEventSetCreate(), set()
        for index in set(range(pynvml.nvmlDeviceGetCount())) - self._registered:
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                # A GPU that falls off the bus still reports the error, but its UUID can no longer be read.
                self._uuids[_address(handle)] = device_identity(handle)[0]
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
                if kinds:
                    pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
                    self._registered.add(index)
        return bool(self._registered)

    def _wait(self) -> None:
        """Count errors until the round ends; errors beyond the bound of a round are left for the next one."""
        until_s = time.monotonic() + 0.8 * self.every_s
        for _ in range(_ERRORS_PER_ROUND_MAX):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, max(int(1000 * (until_s - time.monotonic())), 0))
            except pynvml.NVMLError_Timeout:
                return
            key = (self._uuids.get(_address(event.device)) or _uuid(event.device), int(event.eventData))
            self._seen[key] = self._seen.get(key, 0) + 1

    def _discard_set(self) -> None:
        """Create a new event set in the next round; the old one is freed then."""
        if self._set is not None:
            self._old.append(self._set)
            self._set = None


def _freed(events: Any) -> bool:
    """Free an event set; return whether it no longer occupies the driver. A set that the driver does not know occupies nothing."""
    try:
        pynvml.nvmlEventSetFree(events)
    except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_Uninitialized):
        return True
    except pynvml.NVMLError:
        return False
    return True


def _address(handle: Any) -> int:
    """Return the address behind a handle, which is equal for all handles of a device."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _uuid(handle: Any) -> str:
    try:
        return device_identity(handle)[0]
    except pynvml.NVMLError:
        return ""


def _pids(handle: Any) -> list[int]:
    """Return the processes that compute on a device; [] if they cannot be read."""
    try:
        return [int(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return []
