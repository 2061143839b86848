"""Calls a function after a package was imported: a finder in front of the others that finds nothing itself.

The loader of such a package stays the one that the other finders return; only its ``exec_module`` is extended. A package that is imported
already is not noticed. This module imports the standard library only, because `legato run` loads it in processes without Legato.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

__all__ = ["AfterImport", "is_imported", "is_installed"]


class AfterImport:
    """A finder of ``sys.meta_path``: calls ``then`` with the name of each of these packages, once its code has run."""

    def __init__(self, names: Collection[str], then: Callable[[str], object]) -> None:
        self._names = frozenset(names)
        self._then = then
        self._searching = threading.local()

    def install(self) -> None:
        """Notice imports from now on."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Notice no further imports. One that is under way is still noticed."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """Return what the other finders find, with an extended loader; ``None`` for other packages."""
        # Other tools have finders like this one, and each asks all the others.
        if name not in self._names or getattr(self._searching, "is_busy", False):
            return None
        self._searching.is_busy = True
        try:
            spec = _found(self, name, path, target)
        finally:
            self._searching.is_busy = False
        if spec is not None:
            self._extend(spec)
        return spec

    def _extend(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Extend the loader, unless it is a class (a frozen module) or refuses. It may load other modules, too (of a zip file)."""
        loader, name = spec.loader, spec.name
        original = getattr(loader, "exec_module", None)
        if original is None or isinstance(loader, type):
            return

        @functools.wraps(original)
        def exec_module(module: ModuleType) -> None:
            original(module)
            if module.__name__ == name:
                self._then(name)

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
        except AttributeError:
            return


def _found(without: AfterImport, name: str, path: Any, target: ModuleType | None) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find is not None and finder is not without else None
        if spec is not None:
            return spec
    return None


def is_imported(name: str) -> bool:
    """Whether a package was imported completely. One that still runs its code must not be used yet."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def is_installed(name: str) -> bool:
    """Whether a package can be imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
