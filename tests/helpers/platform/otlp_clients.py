"""The programs in `tests/otlp_clients`: OpenTelemetry's SDKs for Python, Go and Node as clients, made once for a checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

from helpers.repo.repository import ROOT

__all__ = ["run"]

_SOURCE = ROOT / "tests" / "otlp_clients"
# A build without a cache compiles grpc and the exporters.
_MAKE_S_MAX = 900
_RUN_S_MAX = 120


def _go(folder: pathlib.Path) -> None:
    """Build the program. The flags are those of the Collector's build, so that both share the compiler's cache."""
    environ = {**os.environ, "CGO_ENABLED": "0"}
    _call(["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(folder / "program"), "."], _SOURCE / "go", environ)


def _node(folder: pathlib.Path) -> None:
    """Install the packages and copy the program beside them, where Node looks for packages."""
    for source in (_SOURCE / "node").iterdir():
        shutil.copy(source, folder)
    flags = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    _call(["npm", "install", *flags], folder, os.environ)


def _python(folder: pathlib.Path) -> None:
    """Nothing has to be made: the SDK is among the tests' own packages."""
    shutil.copy(_SOURCE / "python" / "main.py", folder)


_COMMANDS: Mapping[str, tuple[str, Callable[[pathlib.Path], None], Sequence[str]]] = {
    "python": (sys.executable, _python, (sys.executable, "{folder}/main.py")),
    "go": ("go", _go, ("{folder}/program",)),
    "node": ("npm", _node, ("node", "{folder}/main.mjs")),
}


def _call(command: Sequence[str], folder: pathlib.Path, environ: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_MAKE_S_MAX, check=False)
    assert done.returncode == 0, done.stderr


def _command(language: str) -> list[str]:
    """Return the command that runs a client, made if this checkout does not have it yet. Skips the test without its tools."""
    tool, make, words = _COMMANDS[language]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: install it to send OTLP with OpenTelemetry's SDK for {language}")
    content = b"".join(path.read_bytes() for path in sorted((_SOURCE / language).iterdir()))
    folder = ROOT / ".build" / "otlp_clients" / f"{language}-{hashlib.sha256(content).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # Test processes that run at the same time make it once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            make(folder)
            (folder / "complete").touch()
    return [word.format(folder=folder) for word in words]


def run(language: str, environ: Mapping[str, str], *arguments: str) -> None:
    """Run a client with these variables only; it has to report no error."""
    called = [*_command(language), *arguments]
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(called, env={**path, **environ}, capture_output=True, text=True, timeout=_RUN_S_MAX, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
