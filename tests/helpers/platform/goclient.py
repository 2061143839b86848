"""The Go program that asks as Grafana's data source does: built once a module, asked as often as needed."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

__all__ = ["Answer", "ask", "build"]

_SOURCE = pathlib.Path(__file__).parents[2] / "goclient"
# A cold build compiles the driver and all that it needs.
_BUILD_S_MAX = 900
_ASK_S_MAX = 120

Answer = dict[str, Any]


def build(folder: pathlib.Path) -> pathlib.Path:
    """The program, built into ``folder``; skips the test where there is no Go."""
    if shutil.which("go") is None:
        pytest.skip("there is no `go`: install Go (tests/goclient/go.mod says which) to ask as Grafana does")
    program = folder / "goclient"
    command = ["go", "build", "-trimpath", "-o", str(program), "."]
    environ = {**os.environ, "CGO_ENABLED": "0"}
    run = subprocess.run(command, cwd=_SOURCE, env=environ, capture_output=True, text=True, timeout=_BUILD_S_MAX, check=False)
    assert run.returncode == 0, run.stderr
    return program


def ask(program: pathlib.Path, url: str, *flags: str, environ: Mapping[str, str] | None = None) -> dict[str, Answer]:
    """What the program prints, by check. User and password are those of ``environ`` alone."""
    command = [str(program), "-addr", url.removeprefix("http://"), *flags]
    run = subprocess.run(command, env=dict(environ or {}), capture_output=True, text=True, timeout=_ASK_S_MAX, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
    return {answer["check"]: answer for answer in map(json.loads, run.stdout.splitlines())}
