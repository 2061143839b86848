"""Replaced methods of client libraries, and their restoration.

Other tools replace the same methods, such as OpenTelemetry's instrumentations and Sentry. One that did so later has Legato's function below
its own, and restoring the method from before would remove it. Then Legato's function stays, switched off, until it is switched on again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Patch", "Patches"]

# Each tool adds one.
_LAYERS_MAX = 100


class Patch:
    """One replaced method. ``found``: what the class had itself, ``None`` if it inherits the method. ``is_on``: whether it records."""

    __slots__ = ("found", "is_on", "replacement")

    def __init__(self, found: Any) -> None:
        self.found, self.replacement, self.is_on = found, None, True


class Patches:
    """The replacements of one method, by class. Call it under ``setup``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: dict[type, Patch] = {}

    def is_on(self, owner: type) -> bool:
        """Whether the method of this class is replaced."""
        patch = self._made.get(owner)
        return patch is not None and patch.is_on

    def install(self, owner: type, make: Callable[[Any, Patch], Any]) -> None:
        """Replace the method by what ``make`` returns for it, or switch on the replacement that is still there."""
        patch = self._made.get(owner)
        if patch is None or self._is_gone(owner, patch):
            patch = self._made[owner] = Patch(vars(owner).get(self._name))
            patch.replacement = make(getattr(owner, self._name), patch)
            setattr(owner, self._name, patch.replacement)
        patch.is_on = True

    def undo(self) -> None:
        """Restore the methods. Where another tool has replaced one since, Legato's is switched off."""
        for owner, patch in list(self._made.items()):
            patch.is_on = False
            if vars(owner).get(self._name) is patch.replacement:
                if patch.found is None:
                    delattr(owner, self._name)
                else:
                    setattr(owner, self._name, patch.found)
                del self._made[owner]

    def _is_gone(self, owner: type, patch: Patch) -> bool:
        """Whether another tool has certainly removed the replacement: it has restored the method from before."""
        layers = list(_layers(vars(owner).get(self._name)))
        return not any(each is patch.replacement for each in layers) and any(each is patch.found for each in layers)


def _layers(method: Any) -> Iterator[Any]:
    """Yield a function and those that it wraps, as far as it names them."""
    for _ in range(_LAYERS_MAX):
        yield method
        method = getattr(method, "__wrapped__", None)
        if method is None:
            return
