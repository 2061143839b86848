"""GPUs: one collector finds them, one each reads them, one hears of their errors.

One idea: each GPU has a collector of its own, so one that hangs or fell off the bus is down alone; it is looked up again by its UUID, and
comes back when it does. Whose GPU it is, is told by whose processes compute on it; of a GPU that several engines share, each is told beside
its figures, which are nobody's alone.
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

from legato_gpu_agent.collectors import Absent, Collector
from legato_gpu_agent.collectors.counter_starts import Counters
from legato_gpu_agent.collectors.engine_registry import Neighbours
from legato_gpu_agent.collectors.measurement import Attributes, Found, Reading
from legato_gpu_agent.collectors.nvml_fields import ASKED, OFTEN, Figure, Unknown, asked, identity_of

__all__ = ["Gpu", "GpuErrors", "GpuFinder", "Nvml"]

_OWNER_EVERY, _ALL_EVERY_S = 10, 1.0
_MIG_MAX = 8
_ERRORS_PER_ROUND_MAX = 256
_OLD_SETS_MAX = 16
# What no question of a device is answered after. Other faults are of one question, and the next ones are asked all the same.
_LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
)
# Where a driver is not there, and what to do about it.
_ABSENT = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no libnvidia-ml.so.1: this host has no NVIDIA driver, or the container was not given it",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
}


class Nvml:
    """NVML, begun once. Safe for several threads."""

    def __init__(self) -> None:
        self._lock, self._begun = threading.Lock(), False

    def begin(self) -> None:
        """Be ready to be asked. Raises ``Absent`` without a driver."""
        with self._lock:
            if self._begun:
                return
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                if error.value in _ABSENT:
                    raise Absent(_ABSENT[error.value]) from None
                raise
            self._begun = True


class GpuFinder:
    """Finds the GPUs there are; ``add`` is given a collector for each that is new."""

    name, every_s = "gpus", 60.0

    def __init__(self, nvml: Nvml, neighbours: Neighbours, add: Callable[[Collector], None], gpu_every_s: float = 1.0) -> None:
        self._nvml, self._neighbours, self._add, self._gpu_every_s = nvml, neighbours, add, gpu_every_s
        self._known: set[str] = set()

    def collect(self, now_ns: int) -> Iterator[Found]:
        """How many there are. Raises ``Absent`` without a driver or a GPU."""
        self._nvml.begin()
        count = pynvml.nvmlDeviceGetCount()
        if not count:
            raise Absent("the NVIDIA driver knows no GPU")
        self._neighbours.gpus = count
        for index in range(count):
            try:
                uuid, model = identity_of(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError:
                # It fell off the bus: its collector, if it had one, says so.
                continue
            if uuid not in self._known:
                self._known.add(uuid)
                self._add(Gpu(index, uuid, model, self._neighbours, self._gpu_every_s))
        yield Reading("legato.agent.gpus", "{gpu}", float(count))


class Gpu:
    """One GPU: all that it tells once a second at most, what a step may be slow for in each round.

    ``missing``: what it does not tell, and why: for good where it cannot, until it is asked again where it failed. ``owners``: the engines
    whose processes compute on it, or on a MIG instance of it.
    """

    def __init__(self, index: int, uuid: str, model: str, neighbours: Neighbours, every_s: float = 1.0) -> None:
        self.name, self.every_s = f"gpu {index}", every_s
        self.uuid, self.model = uuid, model
        self.missing: dict[str, str] = {}
        self._own = (("hw.id", uuid), ("hw.model", model), ("hw.name", f"GPU {index}"))
        self._neighbours, self._counters = neighbours, Counters()
        self._handle: Any = None
        self.owners: tuple[str, ...] = ()
        self._direct: tuple[str, ...] = ()
        self._round = 0
        self._all_every = math.ceil(_ALL_EVERY_S / every_s)
        self._failed: set[str] = set()

    def collect(self, now_ns: int) -> Iterator[Found]:
        """All that it tells. Raises ``pynvml.NVMLError`` when it is lost, or tells nothing."""
        try:
            yield from list(self._read(now_ns))
        except pynvml.NVMLError:
            self._handle = None
            raise

    def _read(self, now_ns: int) -> Iterator[Found]:
        if self._handle is None:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
            self.missing.clear()
            self._round = 0
        if self._round % _OWNER_EVERY == 0:
            self._direct = self._neighbours.owners_of(_pids(self._handle))
        every = not self._round % self._all_every
        self._round += 1
        tenants: set[str] = set()
        told, fault = 0, None
        for what in (*ASKED, "MIG") if every else OFTEN:
            if what in self.missing and what not in self._failed:
                continue
            try:
                found = list(self._instances(now_ns, tenants) if what == "MIG" else self._answer(what, now_ns))
            except Unknown as error:
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
            told += len(found)
            yield from found
        if fault is not None and not told and every:
            raise fault
        if every:
            self.owners = tuple(sorted({*self._direct, *tenants}))
            yield from self._shared()

    def _answer(self, what: str, now_ns: int) -> Iterator[Found]:
        for figure in ASKED[what](self._handle):
            yield self._reading(figure, self._own, now_ns, self._direct)

    def _shared(self) -> Iterator[Found]:
        """Whose it is, where its figures do not say so."""
        if self.owners != self._direct or len(self.owners) > 1:
            for owner in self.owners:
                yield Reading("legato.gpu.engine", "1", 1.0, (("hw.id", self.uuid), ("legato.engine.id", owner)))

    def _instances(self, now_ns: int, tenants: set[str]) -> Iterator[Found]:
        """Memory of each MIG instance: the rest is the whole GPU's. Whose they are is added to ``tenants``."""
        if not asked(pynvml.nvmlDeviceGetMigMode, self._handle)[0]:
            return
        self.missing.pop("MIG instance", None)
        for place in range(min(asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, self._handle), _MIG_MAX)):
            try:
                instance = asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self._handle, place)
                uuid, model = asked(identity_of, instance)
                figures = list(ASKED["memory"](instance))
            except pynvml.NVMLError_NotFound:
                continue
            except Unknown as error:
                # It may just have been taken away: the others are still there, and so may be its successor.
                self.missing["MIG instance"] = str(error)
                continue
            own = (("hw.id", uuid), ("hw.model", model), ("hw.parent", self.uuid))
            owners = self._neighbours.owners_of(_pids(instance), is_part=True)
            tenants.update(owners)
            for figure in figures:
                yield self._reading(figure, own, now_ns, owners)

    def _reading(self, figure: Figure, own: Attributes, now_ns: int, owners: tuple[str, ...]) -> Reading:
        whose = (("legato.engine.id", owners[0]),) if len(owners) == 1 else ()
        attributes = tuple(sorted((*own, *figure.attributes, *whose)))
        since_ns = self._counters.since_ns((figure.metric, attributes), figure.value, now_ns) if figure.counts else 0
        return Reading(figure.metric, figure.unit, float(figure.value), attributes, since_ns)


class GpuErrors:
    """XID errors, as the driver tells of them: counted by device and number."""

    name = "gpu errors"

    def __init__(self, nvml: Nvml, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._nvml = nvml
        self._set: Any = None
        self._heard: set[int] = set()
        self._uuids: dict[int, str] = {}
        self._seen: dict[tuple[str, int], int] = {}
        self._since_ns = 0
        self._old: list[Any] = []

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Errors so far; waits for new ones as long as a round may be. Raises ``Absent`` where nothing tells of them."""
        self._nvml.begin()
        # Counts go on when the set is another, so since when they count stays, too.
        self._since_ns = self._since_ns or now_ns
        try:
            if self._listen():
                self._hear()
        except pynvml.NVMLError:
            self._forget()
            raise
        if not self._heard and not self._seen:
            raise Absent("no GPU tells of its XID errors")
        for (uuid, number), count in self._seen.items():
            yield Reading("hw.errors", "{error}", float(count), (("error.type", f"xid_{number}"), ("hw.id", uuid)), self._since_ns)

    def _listen(self) -> bool:
        """Whether any GPU tells. One that did not answer is asked again in the next round: it may be new, or back."""
        # The driver has room for so many: those that it could not take back while it failed go first.
        self._old = [old for old in self._old if not _taken_back(old)][-_OLD_SETS_MAX:]
        if self._set is None:
            self._set, self._heard = pynvml.nvmlEventSetCreate(), set()
        for index in set(range(pynvml.nvmlDeviceGetCount())) - self._heard:
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                # A GPU that fell off the bus tells so, but not any more who it is.
                self._uuids[_address(handle)] = identity_of(handle)[0]
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
                if kinds:
                    pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
                    self._heard.add(index)
        return bool(self._heard)

    def _hear(self) -> None:
        """Count errors until the round is over; more than a round may hold are left to the next."""
        until_s = time.monotonic() + 0.8 * self.every_s
        for _ in range(_ERRORS_PER_ROUND_MAX):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, max(int(1000 * (until_s - time.monotonic())), 0))
            except pynvml.NVMLError_Timeout:
                return
            key = (self._uuids.get(_address(event.device)) or _uuid(event.device), int(event.eventData))
            self._seen[key] = self._seen.get(key, 0) + 1

    def _forget(self) -> None:
        """The set is begun anew; its place in the driver is given back."""
        if self._set is not None:
            self._old.append(self._set)
            self._set = None


def _taken_back(events: Any) -> bool:
    """Whether the driver has room for another set again; one that it does not know any more takes none."""
    try:
        pynvml.nvmlEventSetFree(events)
    except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_Uninitialized):
        return True
    except pynvml.NVMLError:
        return False
    return True


def _address(handle: Any) -> int:
    """What is the same for each handle of a device."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _uuid(handle: Any) -> str:
    try:
        return identity_of(handle)[0]
    except pynvml.NVMLError:
        return ""


def _pids(handle: Any) -> list[int]:
    """Processes that compute on it; none where they are not told."""
    try:
        return [int(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return []
