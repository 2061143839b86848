"""The real `opentelemetry-instrument` finds the SDK where it is installed, and its program's streams are recorded."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from helpers.builders.completions import completions_server
from helpers.servers.receiver import receiver

SDK = pathlib.Path(__file__).parents[2] / "sdk"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEGATO_", "PYTEST_", "PYTHONPATH"))}
# The library is imported after the loader has run.
PROGRAM = """
import sys, httpx
from opentelemetry import trace
with trace.get_tracer("application").start_as_current_span("work"):
    with httpx.stream("POST", sys.argv[1] + "/chat/completions", json={"model": "normal", "stream": True}) as response:
        response.read()
import legato
legato.flush()
print(sorted(each for each, count in legato.stats().items() if count and each in ("exported", "handed_over")))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the installed SDK. The checkout is not on the path: its entry points are those of an earlier installation."""
    folder = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(SDK)], check=True)
    return folder


@pytest.mark.parametrize(
    ("variables", "routes", "service"),
    [
        ({}, ["handed_over"], "application"),
        ({"LEGATO_ENDPOINT": "{url}", "OTEL_TRACES_EXPORTER": "none"}, ["exported"], "application"),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "legato"}, [], ""),
    ],
)
def test_a_program_without_a_line_of_legato(installed: pathlib.Path, variables: dict[str, str], routes: list[str], service: str) -> None:
    """Through the provider that the command has set, or to Legato's endpoint if it is set; not at all if it is switched off."""
    with completions_server() as server, receiver() as endpoint:
        environ = {
            **CLEAN,
            "PYTHONPATH": str(installed),
            "OTEL_SERVICE_NAME": "application",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            **{name: value.format(url=endpoint.url) for name, value in variables.items()},
        }
        command = pathlib.Path(sys.executable).parent / "opentelemetry-instrument"
        done = subprocess.run(
            [command, sys.executable, "-c", PROGRAM, server], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        streams = endpoint.streams
    assert done.returncode == 0 and done.stdout.strip() == str(routes), (done.stdout, done.stderr)
    assert [(each.service, each.model) for each in streams] == ([(service, "normal")] if service else [])
    assert all(each.parent_id for each in streams)


@pytest.mark.parametrize(("variables", "is_own"), [({}, False), ({"LEGATO_RUN": "app"}, True)])
def test_below_legato_run_streams_go_to_its_endpoint(variables: dict[str, str], is_own: bool) -> None:
    """`legato run opentelemetry-instrument …`: the loader's `sitecustomize` runs instead of Legato's, and its provider got the streams."""
    program = "from legato import _entry_point, _route; _entry_point.Instrumentor().instrument(); print(_route._later is not None)"
    environ = {**CLEAN, "PYTHONPATH": str(SDK), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{is_own}\n", "")
