"""What users see when an export is refused or a call is wrong."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.servers.serving import serve_process, served
from legato._recorder import Origin, StreamRecorder
from legato._replies import Replies
from legato._spans import start_span

EXPORTS = """
import legato
legato.configure(endpoint=%r)
with legato.stream(model="m") as recorder:
    recorder.record(3)
print(legato.flush(), legato.stats()["refused"])
"""


def export(otlp: str, token: str) -> subprocess.CompletedProcess[str]:
    """Export one stream from another process with this token."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | {"LEGATO_TOKEN": token}
    return subprocess.run([sys.executable, "-c", EXPORTS % otlp], env=environ, capture_output=True, text=True, check=True, timeout=60)


def test_a_refused_token_is_visible(tmp_path: pathlib.Path) -> None:
    """``flush`` returns False, ``stats`` counts it, and the log says what to do; the token stands nowhere."""
    (tmp_path / "tokens").write_text("", encoding="utf-8")
    with serve_process(tmp_path / "store", LEGATO_TOKENS_FILE=str(tmp_path / "tokens")) as server:
        done = export(server.otlp, "wrong-token")
    assert done.stdout.split() == ["False", "1"], done
    assert "HTTP 401" in done.stderr and "legato token add" in done.stderr and "wrong-token" not in done.stderr


@pytest.mark.parametrize(
    ("statuses", "refused", "is_refused"), [((200,), 0, False), ((503, 429), 0, False), ((401, 401), 2, True), ((401, 200), 1, False)]
)
def test_only_a_final_refusal_counts(statuses: tuple[int, ...], refused: int, is_refused: bool) -> None:
    """The exporter retries the others; a later success shows that the endpoint accepts exports again."""
    replies = Replies()
    for status in statuses:
        replies.note(SimpleNamespace(status_code=status))
    assert (replies.refused, replies.is_refused) == (refused, is_refused)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "stdout"),
    [
        (200, "text/html; charset=utf-8", b"<html>login</html>", ["False", "1"]),
        (302, "text/html", b"", ["False", "1"]),
        (200, "application/json", b"{}", ["True", "0"]),
        (200, "text/plain", b"", ["True", "0"]),
    ],
)
def test_a_page_is_a_refusal(status: int, content_type: str, body: bytes, stdout: list[str]) -> None:
    """A login answers with a page, or with a redirect to one."""

    async def login(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", content_type.encode()), (b"location", b"/login")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    with served(login) as url:
        done = export(url, "")
    assert done.stdout.split() == stdout
    assert ("a page or a redirect answers" in done.stderr) is (stdout[0] == "False")


WRONG = [("7",), (-1,), (1.5,), (None,), (3, "4"), (3, -4), (3, None, 99), (3, None, "text")]


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_argument_is_an_error_under_test(arguments: tuple[Any, ...]) -> None:
    """At the call, with what was given and what is expected."""
    with legato.stream(model="m") as recorder, pytest.raises(TypeError, match=r"record\(\) got .*: expected"):
        recorder.record(*arguments)


@pytest.mark.parametrize("arguments", WRONG)
def test_in_production_the_stream_is_recorded(
    arguments: tuple[Any, ...], columns: Callable[[ReadableSpan], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log names the call and no text; the chunk keeps its time, and its neighbours their values."""
    from legato import _errors

    _errors._seen.discard("record()")
    origin = Origin(model="m")
    recorder = StreamRecorder(origin, start_span(origin, 0), 0, lambda _: None)
    with caplog.at_level(logging.WARNING, "legato"):
        recorder.record(5, 1)
        recorder.record(*arguments)
        recorder.record(*arguments)
        recorder.record(6, 2)
        found = recorder.digest()
    assert (found.sizes, found.kinds, found.tokens) == ([5, 0, 0, 6], [1, 1, 1, 1], None) and len(found.times) == 4
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("legato: record() got ") and "'7'" not in line and "text" not in line.split("expected")[0].replace("of type", "")
    recorder.end()
