"""`StreamMiddleware` configures the export itself in a server where no code can be added."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from legato.asgi import StreamMiddleware
StreamMiddleware(None)
print(isinstance(trace.get_tracer_provider(), TracerProvider))
"""


@pytest.mark.parametrize(
    ("environ", "configured"),
    [
        ({}, "False"),
        ({"LEGATO_ENDPOINT": "http://127.0.0.1:9"}, "True"),
        ({"LEGATO_ENDPOINT": "http://127.0.0.1:9", "LEGATO_DISABLED": "1"}, "False"),
    ],
)
def test_it_configures_the_export_if_an_endpoint_is_set(environ: dict[str, str], configured: str) -> None:
    """With LEGATO_ENDPOINT set the middleware configures the process; without it, or when disabled, it does not."""
    result = subprocess.run([sys.executable, "-c", SCRIPT], env={"PATH": "", **environ}, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == configured
