"""`StreamMiddleware` configures the export itself in a server where no code can be added."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
from legato._route import current_route
from legato.asgi import StreamMiddleware
StreamMiddleware(None)
print(current_route().name)
"""


@pytest.mark.parametrize(
    ("environ", "configured"),
    [
        ({}, "NOWHERE"),
        ({"LEGATO_ENDPOINT": "http://127.0.0.1:9"}, "OWN"),
        ({"LEGATO_ENDPOINT": "http://127.0.0.1:9", "LEGATO_DISABLED": "1"}, "DISABLED"),
    ],
)
def test_it_configures_the_export_if_an_endpoint_is_set(environ: dict[str, str], configured: str) -> None:
    """With LEGATO_ENDPOINT set the middleware configures the process; without it, or when disabled, it does not."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environ},
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip() == configured
