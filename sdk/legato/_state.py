"""The process's settings, read once, and the lock of its set-up.

The environment is read at first use, not at import, so that an application or a test can set variables after importing `legato`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from legato._errors import wrong_setting
from legato._exits import after_fork
from legato._settings import Settings

__all__ = ["recording_settings", "settings", "setup"]

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")
_lock = threading.RLock()


def _forked() -> None:
    global _lock
    _lock = threading.RLock()


after_fork(_forked)


def setup(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Let only one thread at a time run any of the decorated functions: each has an effect only the first time.

    None of them may import anything, nor log, because a handler of logs may import. An import can wait for another thread that imports the
    same package, and that one calls these functions before its import is over (`_imports`): both would wait for ever.
    """

    @wraps(function)
    def exclusive(*given: _Given.args, **named: _Given.kwargs) -> _Returned:
        with _lock:
            return function(*given, **named)

    return exclusive


@cache
def settings() -> Settings:
    """Return the settings from the environment, for configuration calls. Raises ``ConfigurationError`` if one is invalid."""
    return Settings.from_env(os.environ)


@cache
def recording_settings() -> Settings:
    """Return the same for all other calls, which never raise: an invalid variable is logged once and has its default."""
    return Settings.from_env(os.environ, lambda error: wrong_setting(error, "The default is used."))
