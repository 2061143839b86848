"""Wait for conditions that other processes or threads fulfil."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["eventually", "until"]


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether the condition becomes true within ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition is true. Fail after ``seconds``."""
    assert eventually(condition, seconds), f"the condition was not true within {seconds} s"
