"""One NVIDIA GPU's figures by NVML, through the bindings that NVIDIA keeps (nvidia-ml-py).

One idea: a table of questions, each of which a device may not know: one that it does not support is not asked again, and the others go on.
Field ids are taken by name, as drivers renumbered some. Getters alone, which need no root. It decides nothing about time and threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from legato_gpu_agent.collectors.measurement import Attributes

__all__ = ["ASKED", "OFTEN", "Figure", "Unknown", "field_values", "identity_of"]

_KIB = 1024
_ALL_LINKS = 0xFFFF_FFFF


class Unknown(Exception):
    """The device or its driver does not tell this."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a device, in its unit; ``counts``: it only grows."""

    metric: str
    unit: str
    value: float
    counts: bool = False
    attributes: Attributes = ()


# What NVML says when a device has no such thing, or we are not to know.
_NEVER = tuple(
    getattr(pynvml, name)
    for name in ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT",
                 "NVML_ERROR_ARGUMENT_VERSION_MISMATCH", "NVML_ERROR_DEPRECATED")
    if hasattr(pynvml, name)
)  # fmt: skip
# Why the clocks were lowered, and the cumulative time of it in ns, by the names of the fields.
_REASONS = {
    "power_cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "thermal": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "sync_boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
}
# The driver understands the number of a field, not its name, and 580.82 gave these others: before it they are of something else.
_FINER_SINCE = (580, 82)
_FINER = {
    "thermal_software": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "thermal_hardware": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}


def asked(call: Callable[..., Any], *arguments: Any) -> Any:
    """What NVML answers. Raises ``Unknown`` where it does not know, and ``pynvml.NVMLError`` for all that is a fault."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NEVER:
            raise Unknown(str(error)) from None
        raise


def identity_of(handle: Any) -> tuple[str, str]:
    """The device's UUID and its model's name."""
    return _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle))


def field_values(handle: Any, names: list[str], scope: int = 0) -> dict[str, float]:
    """Values of fields by name (``NVML_FI_DEV_…``); those that the bindings or the device do not know are left out.

    Raises ``pynvml.NVMLError`` when there is no value and it is a fault.
    """
    known = [name for name in names if hasattr(pynvml, name)]
    if not known:
        return {}
    values = asked(pynvml.nvmlDeviceGetFieldValues, handle, [(getattr(pynvml, name), scope) for name in known])
    codes = [value.nvmlReturn for value in values]
    out = {name: _number(value) for name, value, code in zip(known, values, codes, strict=True) if code == pynvml.NVML_SUCCESS}
    faults = [code for code in codes if code not in (pynvml.NVML_SUCCESS, *_NEVER)]
    if faults and not out:
        raise pynvml.NVMLError(faults[0])
    return out


def _number(value: Any) -> float:
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return float(getattr(value.value, kinds[value.valueType]))


def _clock(handle: Any) -> Iterator[Figure]:
    yield Figure("hw.gpu.clock.sm", "MHz", asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM))


def _clock_limit(handle: Any) -> Iterator[Figure]:
    yield Figure("hw.gpu.clock.sm.limit", "MHz", asked(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM))


def _memory_clock(handle: Any) -> Iterator[Figure]:
    """Apart from the other: without this one, the SM clock is told all the same."""
    yield Figure("hw.gpu.clock.memory", "MHz", asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM))


def _memory_clock_limit(handle: Any) -> Iterator[Figure]:
    yield Figure("hw.gpu.clock.memory.limit", "MHz", asked(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM))


def _throttle(handle: Any) -> Iterator[Figure]:
    """Time with lowered clocks; where the finer reasons of heat are told, the coarse one would count them twice."""
    reasons = {**_REASONS, **_FINER} if _driver() >= _FINER_SINCE else _REASONS
    values = field_values(handle, list(reasons.values()))
    told = {reason for reason, name in reasons.items() if name in values}
    if not told:
        raise Unknown("no counter of lowered clocks")
    if told & {"thermal_software", "thermal_hardware"}:
        told -= {"thermal"}
    for reason in sorted(told):
        yield Figure("hw.gpu.throttle.time", "s", values[reasons[reason]] / 1e9, True, (("reason", reason),))


def _driver() -> tuple[int, ...]:
    """The driver's version; nothing where it does not say."""
    try:
        said = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ()
    return tuple(int(part) for part in said.split(".") if part.isdecimal())


def _power(handle: Any) -> Iterator[Figure]:
    yield Figure("hw.power", "W", asked(pynvml.nvmlDeviceGetPowerUsage, handle) / 1e3)


def _power_limit(handle: Any) -> Iterator[Figure]:
    yield Figure("hw.power.limit", "W", asked(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) / 1e3)


def _energy(handle: Any) -> Iterator[Figure]:
    yield Figure("hw.energy", "J", asked(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) / 1e3, True)


def _memory(handle: Any) -> Iterator[Figure]:
    memory = asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    yield Figure("hw.gpu.memory.usage", "By", memory.used)
    yield Figure("hw.gpu.memory.limit", "By", memory.total)


def _temperature(handle: Any) -> Iterator[Figure]:
    try:
        celsius = asked(pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU)
    except (Unknown, AttributeError):
        # Drivers from before 560 know the older call alone.
        celsius = asked(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    yield Figure("hw.temperature", "Cel", celsius, False, (("sensor", "gpu"),))


def _memory_temperature(handle: Any) -> Iterator[Figure]:
    values = field_values(handle, ["NVML_FI_DEV_MEMORY_TEMP"])
    if not values:
        raise Unknown("no sensor in its memory")
    yield Figure("hw.temperature", "Cel", next(iter(values.values())), False, (("sensor", "memory"),))


def _utilization(handle: Any) -> Iterator[Figure]:
    rates = asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
    yield Figure("hw.gpu.utilization", "1", rates.gpu / 100)


def _pcie(handle: Any) -> Iterator[Figure]:
    """The cumulative counters of newer GPUs: the other call measures for 20 ms each time it is asked."""
    values = field_values(handle, ["NVML_FI_DEV_PCIE_COUNT_TX_BYTES", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"])
    if not values:
        raise Unknown("no cumulative counters of PCIe")
    for name, value in values.items():
        direction = "transmit" if "_TX_" in name else "receive"
        yield Figure("hw.gpu.io", "By", value, True, (("link", "pcie"), ("network.io.direction", direction)))


def _pcie_replays(handle: Any) -> Iterator[Figure]:
    replays = asked(pynvml.nvmlDeviceGetPcieReplayCounter, handle)
    yield Figure("hw.errors", "{error}", replays, True, (("error.type", "pcie_replay"),))


def _nvlink(handle: Any) -> Iterator[Figure]:
    values = field_values(handle, ["NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"], _ALL_LINKS)
    if not values:
        raise Unknown("no counters of NVLink")
    for name, value in values.items():
        direction = "transmit" if name.endswith("_TX") else "receive"
        yield Figure("hw.gpu.io", "By", value * _KIB, True, (("link", "nvlink"), ("network.io.direction", direction)))


def _ecc(handle: Any) -> Iterator[Figure]:
    names = {"ecc_corrected": "NVML_FI_DEV_ECC_SBE_AGG_TOTAL", "ecc_uncorrected": "NVML_FI_DEV_ECC_DBE_AGG_TOTAL"}
    values = field_values(handle, list(names.values()))
    if not values:
        raise Unknown("no counters of ECC: the GPU has none, or it is off")
    for kind, name in names.items():
        if name in values:
            yield Figure("hw.errors", "{error}", values[name], True, (("error.type", kind),))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


ASKED: dict[str, Callable[[Any], Iterator[Figure]]] = {
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
"""What is asked of a device, by what it is called when it is missing."""
OFTEN = ("clocks", "memory clock", "throttle time", "power", "energy", "utilization")
"""What a step may be slow for; the rest changes slowly, or only counts up, and is asked once a second at most."""
