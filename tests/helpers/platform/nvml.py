"""Fake GPUs for the real NVML bindings: the library of `fake_nvml.c`, and the state file that it reads.

A test writes the state, and the library reads it at the next call. A file is replaced atomically, so it is never read half-written.

Keys of a GPU (integers if not stated otherwise; `error CODE` in place of a value returns that NVML code, a missing key "not supported"):
name, uuid, pci, clock.{graphics,sm,mem,video}[.max], event_reasons, supported_event_reasons, power_mw, power_limit_mw, energy_mj,
memory.{total,used,free,reserved}, temperature[.SENSOR], utilization.{gpu,memory}, violation.POLICY (ns), timestamp_us (else: now),
pcie_replay, pcie.{generation,width}, ecc.{corrected,uncorrected}[.volatile|.aggregate], nvlink.LINK, supported_events,
field.ID[.SCOPE] ("61 uint": with a type, by default ull; double, uint, ulong, ull, sll, int, ushort), process (["PID BYTES", ...]),
mig, mig.{max,pending}, and, of each MIG device N, gi, ci and any of the above after `mig.N.`; error (of every call), hang_ms.
Keys of no GPU (None): driver, nvml, cuda, init_error, and error and hang_ms of the calls about no device.

It does not know what a real driver would answer: the values of `h200` are plausible, those of `data/nvml_h100.json` are recorded.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Mapping

import pytest

__all__ = ["FakeGpus", "build", "h200", "mig"]

_SOURCE = pathlib.Path(__file__).parents[2] / "gpu_agent" / "fake_nvml" / "fake_nvml.c"
_SONAME = "libnvidia-ml.so.1"
_FLAGS = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-Wl,-soname,{_SONAME}"]
_COMPILE_S_MAX = 60
_GIB, _MIB = 1 << 30, 1 << 20
# The scope of a counter that is the sum over all NVLinks.
_ALL_LINKS = 0xFFFFFFFF

# A key unknown to the library would be "not supported" forever, and the test with it would prove nothing.
_OF_MACHINE = re.compile(r"driver|nvml|cuda|init_error|error|hang_ms")
_OF_GPU = re.compile(
    r"error|hang_ms|mig|mig\.(max|pending)|(mig\.[0-7]\.)?("
    r"name|uuid|pci|clock\.(graphics|sm|mem|video)(\.max)?|(supported_)?event_reasons|power(_limit)?_mw|energy_mj"
    r"|memory\.(total|used|free|reserved)|temperature(\.\d+)?|utilization\.(gpu|memory)|violation\.\d+|timestamp_us"
    r"|pcie_replay|pcie\.(generation|width)|ecc\.(un)?corrected(\.(volatile|aggregate))?|nvlink\.\d+|supported_events"
    r"|field\.\d+(\.\d+)?|process|gi|ci)"
)

Value = int | float | str | list[str]


def build(folder: pathlib.Path) -> pathlib.Path:
    """Compile the library into ``folder``, under the file name that the bindings load."""
    library = folder / _SONAME
    command = ["cc", *_FLAGS, "-o", str(library), str(_SOURCE)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S_MAX, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` ended with {run.returncode}: {run.stderr}")
    return library


def h200(index: int) -> dict[str, Value]:
    """Return the keys of a busy H200. Fields 269 to 271 are those of bindings since 13.580.82; 12.575 and 13.580.65 have 251 to 253."""
    keys: dict[str, Value] = {"name": "NVIDIA H200", "uuid": f"GPU-{index:08x}-2c4e-4b6a-9d01-5f3a7e8b9c0d"}
    keys |= {f"clock.{name}{end}": mhz for name, mhz in (("graphics", 1980), ("sm", 1980), ("mem", 3201)) for end in ("", ".max")}
    keys |= {"pci": f"00000000:{27 + index:02X}:00.0", "pcie.generation": 5, "pcie.width": 16, "pcie_replay": 0, "mig": 0}
    keys |= {"power_mw": 350_000, "power_limit_mw": 700_000, "energy_mj": 123_456_789, "temperature": 61}
    keys |= {"memory.total": 143_771 * _MIB, "memory.used": 80 * _GIB, "memory.reserved": 614 * _MIB, "memory.free": 61_237 * _MIB}
    keys |= {"utilization.gpu": 97, "utilization.memory": 40, "ecc.corrected": 0, "ecc.uncorrected": 0}
    keys |= {"event_reasons": 0, "supported_event_reasons": 0x1FF, "supported_events": 0x11B}
    keys |= {f"nvlink.{link}": 1 for link in range(18)} | {f"violation.{policy}": 0 for policy in (0, 1, 2, 3, 4, 5, 10, 11)}
    keys |= {f"field.{field}": 0 for field in (5, 6, *range(74, 82), 197, 198, 269, 270, 271)} | {"field.83": 123_456_789}
    keys |= {f"field.{field}": "0 uint" for field in (94, *range(173, 184))} | {"field.82": "66 uint", "field.186": "350000 uint"}
    return keys | {f"field.{field}.{_ALL_LINKS}": 0 for field in range(138, 142)}


def mig(device: int) -> dict[str, Value]:
    """Return the keys of one MIG device (a seventh of an H200); its GPU also needs ``mig``: 1."""
    keys: dict[str, Value] = {"name": "NVIDIA H200 MIG 1g.18gb", "uuid": f"MIG-{device:08x}-7a1b-5c2d-8e3f-4a5b6c7d8e9f", "ci": 0}
    keys |= {"memory.total": 16 * _GIB, "memory.used": 2 * _GIB, "memory.free": 14 * _GIB - 16 * _MIB, "memory.reserved": 16 * _MIB}
    keys["gi"] = 7 + device
    return {f"mig.{device}.{key}": value for key, value in keys.items()}


class FakeGpus:
    """The GPUs of one state file. Each method replaces the file once, so its changes become visible together."""

    def __init__(self, library: pathlib.Path, state: pathlib.Path, *gpus: Mapping[str, Value]) -> None:
        self.library, self.state = library, state
        self._keys: dict[int | None, dict[str, Value]] = {None: {"driver": "590.48.01", "nvml": "13.590.48.01", "cuda": 13010}}
        self._keys |= {index: _checked(index, keys) for index, keys in enumerate(gpus)}
        self._events: list[str] = []
        self._written_ns = 0
        self._write()

    def set(self, gpu: int | None, keys: Mapping[str, Value]) -> None:
        """Add or change keys of a GPU, or of the machine (None)."""
        self._keys.setdefault(gpu, {}).update(_checked(gpu, keys))
        self._write()

    def remove(self, gpu: int | None, *keys: str) -> None:
        """Remove keys; without keys, the whole GPU. Handles of the last GPU then refer to a lost GPU."""
        for key in keys:
            del self._keys[gpu][key]
        if not keys:
            del self._keys[gpu]
        self._write()

    def add_event(self, gpu: int, kind: int, data: int, *instance: int) -> None:
        """Add an event with the current time: for an XID error (kind 8) the data is its number. ``instance``: GPU instance and compute
        instance of MIG.
        """
        self._events.append(" ".join(map(str, ("event", gpu, kind, data, *instance))))
        self._write()

    def environment(self) -> dict[str, str]:
        """Return the variables that a subprocess needs in addition to its environment."""
        folders = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": ":".join(folders), "FAKE_NVML_STATE": str(self.state)}

    def load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make these GPUs visible to the bindings in this process until the test ends. Call it before another library of that name is
        loaded.
        """
        monkeypatch.setenv("FAKE_NVML_STATE", str(self.state))
        ctypes.CDLL(str(self.library))
        # The loader now resolves the bare name to the loaded library, in place of every path that the bindings try.
        if not hasattr(ctypes.CDLL(_SONAME), "fake_nvml"):
            raise RuntimeError(f"this process has loaded another {_SONAME} already: expected the fake one to be the first")

    def _write(self) -> None:
        lines = [line for gpu, keys in self._keys.items() for key, value in keys.items() for line in _lines(gpu, key, value)]
        temporary = self.state.with_name(self.state.name + ".new")
        temporary.write_text("\n".join([*lines, *self._events, ""]), encoding="utf-8")
        # File system clocks tick in milliseconds: the library could not distinguish two files within one tick.
        self._written_ns = max(self._written_ns + 1, time.time_ns())
        os.utime(temporary, ns=(self._written_ns, self._written_ns))
        os.replace(temporary, self.state)


def _checked(gpu: int | None, keys: Mapping[str, Value]) -> dict[str, Value]:
    for key in keys:
        if not (_OF_MACHINE if gpu is None else _OF_GPU).fullmatch(key):
            raise ValueError(f"`{key}` is no key of {'the machine' if gpu is None else 'a GPU'}: the docstring of {__name__} has those")
    return dict(keys)


def _lines(gpu: int | None, key: str, value: Value) -> list[str]:
    head = key if gpu is None else f"gpu {gpu} {key}"
    return [f"{head} {each}" for each in (value if isinstance(value, list) else [value])]
