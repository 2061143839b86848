"""The Go program that queries as Grafana's data source does: built once per module, run once per query."""

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
# A build without a cache compiles the driver and all its dependencies.
_BUILD_S_MAX = 900
_QUERY_S_MAX = 120

Answer = dict[str, Any]


def build(folder: pathlib.Path) -> pathlib.Path:
    """Build the program into ``folder``; skip the test where Go is not installed."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed: install the version in tests/goclient/go.mod to query as Grafana does")
    program = folder / "goclient"
    command = ["go", "build", "-trimpath", "-o", str(program), "."]
    environ = {**os.environ, "CGO_ENABLED": "0"}
    run = subprocess.run(command, cwd=_SOURCE, env=environ, capture_output=True, text=True, timeout=_BUILD_S_MAX, check=False)
    assert run.returncode == 0, run.stderr
    return program


def ask(program: pathlib.Path, url: str, *flags: str, environ: Mapping[str, str] | None = None) -> dict[str, Answer]:
    """Return the output of the program, by check. User and password come from ``environ`` only."""
    command = [str(program), "-addr", url.removeprefix("http://"), *flags]
    run = subprocess.run(command, env=dict(environ or {}), capture_output=True, text=True, timeout=_QUERY_S_MAX, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
    return {answer["check"]: answer for answer in map(json.loads, run.stdout.splitlines())}
