"""Invalid variables: an error of configuration calls only. Whatever records goes on with the default."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from legato._errors import ConfigurationError
from legato._settings import Settings

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEGATO_", "PYTEST_"))}
# Each call twice: a wrong value is logged and counted once.
APPLICATION = """
import asyncio, legato
from legato import asgi, wsgi

async def app(scope, receive, send):
    await send({"type": "http.response.start", "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"data: word"})

async def send(message):
    pass

for _ in range(2):
    assert list(legato.wrap(["a"])) == ["a"]
    with legato.stream() as recorder:
        recorder.record(1)
    wsgi.StreamMiddleware(None)
    asyncio.run(asgi.StreamMiddleware(app)({"type": "http", "method": "POST", "path": "/x", "headers": []}, None, send))
legato.flush()
print(legato.stats()["ended"], legato.stats()["faults"])
for call in (legato.configure, legato.instrument, legato.instrument_openai, legato.instrument_httpx):
    try:
        call()
        print("done")
    except legato.ConfigurationError:
        print("refused")
"""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LEGATO_ENDPOINT", "host:4318"),
        ("LEGATO_TOKEN", "a b"),
        ("LEGATO_SNAPSHOT_INTERVAL_MS", "-1"),
        ("LEGATO_EXPORT_INTERVAL_MS", "1s"),
        ("LEGATO_EXPORT_INTERVAL_MS", "9" * 5000),
        ("LEGATO_DISABLED", "maybe"),
    ],
)
def test_an_invalid_variable_has_its_default_while_recording(variable: str, value: str) -> None:
    """It is logged and counted once, and a middleware that would export says that it does not. Configuration calls raise."""
    # An endpoint with which the middlewares configure the export, if the rest is valid.
    environ = CLEAN | {"LEGATO_ENDPOINT": "http://127.0.0.1:9", variable: value}
    result = subprocess.run([sys.executable, "-c", APPLICATION], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["6", "5", *["refused"] * 4]
    lines = [line for line in result.stderr.splitlines() if variable in line]
    assert [line.rpartition(". ")[2] for line in lines] == ["The default is used.", "Streams are not exported."]


def test_a_disabled_sdk_looks_at_nothing_else() -> None:
    """Neither a call that records nor a configuration call."""
    environ = CLEAN | {"LEGATO_DISABLED": "1", "LEGATO_EXPORT_INTERVAL_MS": "1s", "LEGATO_TOKEN": "a b"}
    result = subprocess.run([sys.executable, "-c", APPLICATION], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["4", "0", *["done"] * 4] and "LEGATO_" not in result.stderr


def test_errors_are_raised_or_handed_over() -> None:
    """Each has its variable, and the others keep their values."""
    environ = {"LEGATO_TOKEN": "a b", "LEGATO_SNAPSHOT_INTERVAL_MS": "x", "LEGATO_EXPORT_INTERVAL_MS": "7"}
    with pytest.raises(ConfigurationError):
        Settings.from_env(environ)
    seen: list[ConfigurationError] = []
    assert Settings.from_env(environ, seen.append) == Settings(export_interval_ms=7)
    assert [str(error).split()[0] for error in seen] == ["LEGATO_TOKEN", "LEGATO_SNAPSHOT_INTERVAL_MS"]
    assert Settings.from_env(environ | {"LEGATO_DISABLED": "on"}) == Settings(export_interval_ms=7, disabled=True)
