"""Runs at the start of each Python process of `legato run`, before its program. `legato run` puts this folder in front of PYTHONPATH.

It waits until a client library is imported, and only then imports Legato: other processes pay nothing, and gevent can patch the standard
library before. The folder is removed from ``sys.path``, and another ``sitecustomize`` that there may be runs as without this one. The
process may be one of an environment without Legato: then it runs unchanged.
"""

import _thread
import importlib.machinery
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_CLIENTS = ("openai", "httpx", "httpx2", "aiohttp", "requests", "legato")


def _wait() -> None:
    """Start Legato after the first import of a client library; now, if a `.pth` file has imported one."""
    path = os.path.join(os.path.dirname(_FOLDER), "_imports.py")
    spec = importlib.util.spec_from_file_location("_legato_imports", path)
    if spec is None or spec.loader is None:
        return
    imports = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imports)

    starting: set[int] = set()

    def start(name: str) -> None:
        thread = _thread.get_ident()
        if thread in starting:
            # Legato has imported this one, and records it as soon as it has started.
            return
        starting.add(thread)
        try:
            importlib.import_module("legato._launch").start(name)
        except Exception as error:
            _warn(f"{type(error).__name__}: {error}")
        finally:
            starting.discard(thread)
            # Not before: another thread may look for another client library meanwhile.
            finder.remove()

    finder = imports.AfterImport(_CLIENTS, start)
    finder.install()
    for name in _CLIENTS:
        if name in sys.modules:
            start(name)
            break


def _warn(reason: str) -> None:
    sys.stderr.write(f"legato run: the streams of {sys.executable} are not recorded ({reason})\n")


def _continue() -> None:
    """Run the ``sitecustomize`` that Python would have found without this one. Its exceptions are reported as without this one."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
    if importlib.machinery.PathFinder.find_spec("sitecustomize") is not None:
        del sys.modules["sitecustomize"]
        importlib.import_module("sitecustomize")


try:
    _wait()
except Exception as error:
    _warn(type(error).__name__)
_continue()
