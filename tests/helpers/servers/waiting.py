"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["eventually", "until"]


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether it holds before so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for it; fails when it does not come within so long."""
    assert eventually(condition, seconds), f"not within {seconds} s"
