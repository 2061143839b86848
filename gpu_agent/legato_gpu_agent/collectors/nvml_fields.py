"""Reads the values of one NVIDIA GPU through NVML, with NVIDIA's bindings (nvidia-ml-py).

A table lists the queries. A query that a device does not support is reported as such and does not affect the others. Field ids are resolved
by name, because drivers renumbered some. Only getters are used, which need no root. Timing and threads belong to `nvml`.

What a query costs was measured on a busy H100 with driver 580.159: most take 3 to 100 µs, a field that the GPU's firmware answers 1 ms,
and the energy 3.8 ms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pynvml

from legato_gpu_agent.collectors.measurement import UNKNOWN_START, Attributes, Measurement

__all__ = ["FREQUENT", "QUERIES", "RARE", "NotSupported", "call", "device_identity", "field_values"]

_KIB = 1024
_ALL_LINKS = 0xFFFF_FFFF


class NotSupported(Exception):
    """The device or its driver does not have this value."""


# Codes of NVML for a value that the device does not have, or that this user may not read.
_NEVER = tuple(
    getattr(pynvml, name)
    for name in ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT",
                 "NVML_ERROR_ARGUMENT_VERSION_MISMATCH", "NVML_ERROR_DEPRECATED")
    if hasattr(pynvml, name)
)  # fmt: skip
# By `valueType`: the member of a field's value that holds the number, and whether the number has 64 bits.
_KINDS = (("dVal", True), ("uiVal", False), ("ulVal", True), ("ullVal", True), ("sllVal", True), ("siVal", False), ("usVal", False))
# Reasons of throttling, and the fields with their cumulative time in ns.
_REASONS = {
    "power_cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "sync_boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
}
_COARSE = {"thermal": "NVML_FI_DEV_PERF_POLICY_THERMAL"}
# The driver receives the number of a field, not its name. Driver 580.82 renumbered these fields; before it the numbers mean other fields.
_FINER_SINCE = (580, 82)
_FINER = {
    "thermal_software": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "thermal_hardware": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML function. Raises ``NotSupported`` for a value that does not exist, else ``pynvml.NVMLError``."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NEVER:
            raise NotSupported(str(error)) from None
        raise


def device_identity(handle: Any) -> tuple[str, str]:
    """Return the device's UUID and the name of its model."""
    return _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle))


def field_values(handle: Any, names: list[str], scope: int = 0, is_long: bool = False) -> dict[str, float]:
    """Return values of fields by name (``NVML_FI_DEV_…``), without those that the bindings or the device do not have.

    ``is_long``: also without those that the driver answers in fewer than 64 bits. Raises ``pynvml.NVMLError`` if there is no value because
    of a fault.
    """
    known = [name for name in names if hasattr(pynvml, name)]
    if not known:
        return {}
    values = call(pynvml.nvmlDeviceGetFieldValues, handle, [(getattr(pynvml, name), scope) for name in known])
    codes = [value.nvmlReturn for value in values]
    found = [(name, value) for name, value, code in zip(known, values, codes, strict=True) if code == pynvml.NVML_SUCCESS]
    out = {name: _number(value) for name, value in found if _KINDS[value.valueType][1] or not is_long}
    faults = [code for code in codes if code not in (pynvml.NVML_SUCCESS, *_NEVER)]
    if faults and not found:
        raise pynvml.NVMLError(faults[0])
    return out


def _number(value: Any) -> float:
    return float(getattr(value.value, _KINDS[value.valueType][0]))


def _gauge(metric: str, unit: str, value: float, attributes: Attributes = ()) -> Measurement:
    return Measurement(metric, unit, float(value), attributes)


def _counter(metric: str, unit: str, value: float, attributes: Attributes = ()) -> Measurement:
    return Measurement(metric, unit, float(value), attributes, UNKNOWN_START)


def _clock(handle: Any) -> Iterator[Measurement]:
    yield _gauge("hw.gpu.clock.sm", "MHz", call(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM))


def _clock_limit(handle: Any) -> Iterator[Measurement]:
    yield _gauge("hw.gpu.clock.sm.limit", "MHz", call(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM))


def _memory_clock(handle: Any) -> Iterator[Measurement]:
    """A separate query, so that a device without this clock still has the SM clock."""
    yield _gauge("hw.gpu.clock.memory", "MHz", call(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM))


def _memory_clock_limit(handle: Any) -> Iterator[Measurement]:
    yield _gauge("hw.gpu.clock.memory.limit", "MHz", call(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM))


def _throttle(handle: Any) -> Iterator[Measurement]:
    """Throttled time by reason. The coarse thermal reason is read only where no finer one exists: it would count the time twice."""
    reasons = {**_REASONS, **_FINER} if _driver() >= _FINER_SINCE else _REASONS
    values = _throttle_seconds(handle, reasons)
    if not values.keys() & {"thermal_software", "thermal_hardware"}:
        with contextlib.suppress(*((pynvml.NVMLError,) if values else ())):
            values |= _throttle_seconds(handle, _COARSE)
    if not values:
        raise NotSupported("no counter of throttled time")
    for reason in sorted(values):
        yield _counter("hw.gpu.throttle.time", "s", values[reason], (("reason", reason),))


def _throttle_seconds(handle: Any, reasons: Mapping[str, str]) -> dict[str, float]:
    values = field_values(handle, list(reasons.values()))
    return {reason: values[name] / 1e9 for reason, name in reasons.items() if name in values}


def _driver() -> tuple[int, ...]:
    """Return the driver's version; () if it is unknown."""
    try:
        version = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ()
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _power(handle: Any) -> Iterator[Measurement]:
    yield _gauge("hw.power", "W", call(pynvml.nvmlDeviceGetPowerUsage, handle) / 1e3)


def _power_limit(handle: Any) -> Iterator[Measurement]:
    yield _gauge("hw.power.limit", "W", call(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) / 1e3)


def _energy(handle: Any) -> Iterator[Measurement]:
    yield _counter("hw.energy", "J", call(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) / 1e3)


def _memory(handle: Any) -> Iterator[Measurement]:
    memory = call(pynvml.nvmlDeviceGetMemoryInfo, handle)
    yield _gauge("hw.gpu.memory.usage", "By", memory.used)
    yield _gauge("hw.gpu.memory.limit", "By", memory.total)


def _temperature(handle: Any) -> Iterator[Measurement]:
    try:
        celsius = call(pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU)
    except (NotSupported, AttributeError):
        # Drivers before 560 have only the older call.
        celsius = call(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    yield _gauge("hw.temperature", "Cel", celsius, (("sensor", "gpu"),))


def _memory_temperature(handle: Any) -> Iterator[Measurement]:
    values = field_values(handle, ["NVML_FI_DEV_MEMORY_TEMP"])
    if not values:
        raise NotSupported("no temperature sensor in its memory")
    yield _gauge("hw.temperature", "Cel", next(iter(values.values())), (("sensor", "memory"),))


def _utilization(handle: Any) -> Iterator[Measurement]:
    rates = call(pynvml.nvmlDeviceGetUtilizationRates, handle)
    yield _gauge("hw.gpu.utilization", "1", rates.gpu / 100)


def _pcie(handle: Any) -> Iterator[Measurement]:
    """The cumulative counters of newer GPUs. The older call is not used: it measures for 20 ms each time.

    The driver of an H100 answers in 32 bits, which a link of 50 GB/s passes twelve times a second: such a counter gives no rate.
    """
    values = field_values(handle, ["NVML_FI_DEV_PCIE_COUNT_TX_BYTES", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"], is_long=True)
    if not values:
        raise NotSupported("no cumulative counters of PCIe with 64 bits")
    for name, value in values.items():
        direction = "transmit" if "_TX_" in name else "receive"
        yield _counter("hw.gpu.io", "By", value, (("link", "pcie"), ("network.io.direction", direction)))


def _pcie_replays(handle: Any) -> Iterator[Measurement]:
    replays = call(pynvml.nvmlDeviceGetPcieReplayCounter, handle)
    yield _counter("hw.errors", "{error}", replays, (("error.type", "pcie_replay"),))


def _nvlink(handle: Any) -> Iterator[Measurement]:
    values = field_values(handle, ["NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"], _ALL_LINKS)
    if not values:
        raise NotSupported("no counters of NVLink")
    for name, value in values.items():
        direction = "transmit" if name.endswith("_TX") else "receive"
        yield _counter("hw.gpu.io", "By", value * _KIB, (("link", "nvlink"), ("network.io.direction", direction)))


def _ecc(handle: Any) -> Iterator[Measurement]:
    names = {"ecc_corrected": "NVML_FI_DEV_ECC_SBE_AGG_TOTAL", "ecc_uncorrected": "NVML_FI_DEV_ECC_DBE_AGG_TOTAL"}
    values = field_values(handle, list(names.values()))
    if not values:
        raise NotSupported("no ECC counters: the GPU has no ECC, or it is off")
    for kind, name in names.items():
        if name in values:
            yield _counter("hw.errors", "{error}", values[name], (("error.type", kind),))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


QUERIES: dict[str, Callable[[Any], Iterator[Measurement]]] = {
    "clocks": _clock,
    "clock limit": _clock_limit,
    "memory clock": _memory_clock,
    "memory clock limit": _memory_clock_limit,
    "throttle time": _throttle,
    "power": _power,
    "power limit": _power_limit,
    "energy": _energy,
    "memory": _memory,
    "temperature": _temperature,
    "memory temperature": _memory_temperature,
    "utilization": _utilization,
    "PCIe traffic": _pcie,
    "PCIe replays": _pcie_replays,
    "NVLink traffic": _nvlink,
    "ECC errors": _ecc,
}
"""The queries of a device, under the names that reports use for missing values."""
FREQUENT = ("clocks", "memory clock", "throttle time", "power", "utilization")
"""Queries of every round, because these values can slow a step down; the others are made at most once a second."""
RARE = ("energy",)
"""Queries made at most every ten seconds, because the driver works for milliseconds on each."""
