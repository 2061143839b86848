"""Wait for conditions that other processes or threads fulfil."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["eventually", "until"]


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether the condition becomes true within ``seconds``. It is asked less often the longer it takes, because many ask a server."""
    start = time.monotonic()
    while (waited := time.monotonic() - start) < seconds:
        if condition():
            return True
        time.sleep(min(max(0.05, waited / 20), 0.5))
    return False


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition is true. Fail after ``seconds``."""
    assert eventually(condition, seconds), f"the condition was not true within {seconds} s"
