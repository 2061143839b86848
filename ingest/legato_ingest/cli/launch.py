"""`legato run`: starts a program and has its streams recorded, with the SDK of the program's environment.

The SDK is another distribution, often in another environment than this one, and only it knows how to record. So this command finds a
Python that has the SDK, and replaces itself by `python -m legato run`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import typer

from legato_ingest.errors import SettingsError

__all__ = ["python_with_sdk", "register"]

# Without a package `legato` this raises, and the status is 1, too.
_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('legato.__main__') is None)"
_PATIENCE_S = 30


def register(root: typer.Typer) -> None:
    """Add the command to ``root``."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    root.command("run", context_settings=settings)(run)


def run(context: typer.Context) -> None:
    """Run a program and record every stream that it receives from a language model. Its code needs no change.

    The program is a script (app.py), a module (-m package) or a command (uvicorn, gunicorn, …), with its arguments. Its environment needs
    the SDK: pip install './sdk\\[otlp]' in a checkout of Legato. Streams go to `legato serve` on this machine, or to LEGATO_ENDPOINT.
    `python -m legato run --help` in that environment lists the options.

    Example: legato run uvicorn app:app --port 8000
    """
    start(python_with_sdk(), context.args)


def start(python: str, words: Sequence[str]) -> NoReturn:
    """Replace this process by the program."""
    os.execv(python, [python, "-m", "legato", "run", *words])


def python_with_sdk() -> str:
    """Return the Python that a program would run with and that has the SDK: the first of PATH, else this one. Raises ``SettingsError``."""
    tried = list(dict.fromkeys(_pythons()))
    for python in tried:
        if _has_sdk(python):
            return python
    raise SettingsError(
        f"no SDK of Legato in the environment of {' or '.join(tried)}: activate the program's environment and install it there "
        "(in a checkout of Legato: pip install './sdk[otlp]')"
    )


def _pythons() -> Iterator[str]:
    for name in ("python", "python3"):
        if found := shutil.which(name):
            yield found
            break
    yield sys.executable


def _has_sdk(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", _PROBE], capture_output=True, timeout=_PATIENCE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
