"""The machine and the versions that a bench ran on, for the heading of every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence

__all__ = ["describe", "median", "quantile"]


def describe(*packages: str) -> str:
    """One line: processor, cores that this process may use, kernel, Python, and the named packages' versions."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}, {versions}"


def quantile(values: Sequence[float], share: float) -> float:
    """Order statistic at rank ⌈share n⌉."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def median(values: Sequence[float]) -> float:
    """Order statistic at rank ⌈n / 2⌉."""
    return quantile(values, 0.5)
