"""The process's settings, read once.

The environment is read at first use, not at import, so that an application or a test can set variables after importing `legato`.
"""

from __future__ import annotations

import os
from functools import cache

from legato._settings import Settings

__all__ = ["settings"]


@cache
def settings() -> Settings:
    """Return the settings from the environment. Raises ``ConfigurationError`` if one is invalid."""
    return Settings.from_env(os.environ)
