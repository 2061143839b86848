"""The process's settings, read once.

One idea: the environment is read at first use, not at import, so that `configure()` and tests can say otherwise before.
"""

from __future__ import annotations

import os
from functools import cache

from legato._settings import Settings

__all__ = ["settings"]


@cache
def settings() -> Settings:
    """The settings from the environment. Raises ``ConfigurationError`` once, at the first use."""
    return Settings.from_env(os.environ)
