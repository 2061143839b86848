"""How many examples Hypothesis draws for one test."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

__all__ = ["examples"]


def examples(count: int, **more: Any) -> settings:
    """A decorator: ``count`` examples under the profile `ci`; under `fuzz` as many as the profile says. ``more`` are other settings.

    For tests that take long, or that need more than the number of the profile. Other tests take that number.
    """
    if settings.get_current_profile_name() == "ci":
        return settings(max_examples=count, **more)
    return settings(**more) if more else settings(settings.default)
