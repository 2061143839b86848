"""Calls a function after a package was imported: a finder in front of the others that finds nothing itself.

A package has the loader that the other finders return. A package that is imported already is not noticed. This module imports the standard
library only, because `legato run` loads it in processes without Legato.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from types import ModuleType
from typing import Any

__all__ = ["AfterImport", "is_imported", "is_initializing", "is_installed"]


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
        while self in sys.meta_path:
            # Another thread may have removed it since.
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """Return what the other finders find, with an extended loader; ``None`` for other packages."""
        busy: set[str] = self._searching.__dict__.setdefault("names", set())
        # Other tools have finders like this one, and each asks all the others.
        if name not in self._names or name in busy:
            return None
        busy.add(name)
        try:
            spec = _found(self, name, path, target)
        finally:
            busy.discard(name)
        if spec is not None:
            self._extend(spec)
        return spec

    def _extend(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Put a loader in front, unless the loader is a class (of a frozen module) or of the old kind."""
        if hasattr(spec.loader, "exec_module") and not isinstance(spec.loader, type):
            spec.loader = _Loader(spec.loader, partial(self._then, spec.name))  # type: ignore[assignment]


class _Loader:
    """Loads a package by another loader, which the package has from the first line of its code on. ``then`` is called after the last.

    Nothing is set on the other loader: that of `wrapt` is a proxy of a third one.
    """

    def __init__(self, loader: Any, then: Callable[[], object]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_then"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Run the package's code."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()


def _found(without: AfterImport, name: str, path: Any, target: ModuleType | None) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find is not None and finder is not without else None
        if spec is not None:
            return spec
    return None


def is_imported(name: str) -> bool:
    """Whether a package was imported completely. Waits while another thread imports it; one that this thread imports is not complete.

    The caller must hold no lock, because that other thread may wait for it. The thread may also have looked for the package before a
    finder was installed, and not have made the module yet: only the lock of the import shows that. It has no public name.
    """
    wait = getattr(importlib._bootstrap, "_lock_unlock_module", None)
    if wait is not None:
        wait(name)
    return sys.modules.get(name) is not None and not is_initializing(name)


def is_initializing(name: str) -> bool:
    """Whether a thread imports this package now. In a forked child the thread may be one that only its parent has."""
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False) is True


def is_installed(name: str) -> bool:
    """Whether a package can be imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
