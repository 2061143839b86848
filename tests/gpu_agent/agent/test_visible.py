"""Hostile text from an engine: it forges no line of the agent's log or report, and steers no terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from helpers.builders.hostile import HOSTILE, unseen
from legato_gpu_agent.agent.visible import LineFormatter, visible
from legato_ingest import visible as ingest

# A reason phrase is Latin-1, and may hold the control characters of one byte.
REASON = b"\x1b]0;own\x07\x1b[2J\x9b31m\x7f\xad no"


@contextlib.contextmanager
def engine() -> Iterator[str]:
    """Answer each request with a hostile reason; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as client:
                        client.recv(65_536)
                        client.sendall(b"HTTP/1.1 500 " + REASON + b"\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("words", [("--once", "--print"), ()], ids=["report", "log"])
def test_the_reply_of_an_engine_is_one_line(words: tuple[str, ...], tmp_path: os.PathLike[str]) -> None:
    """Of the report and of the log: each character that is not seen has an escape."""
    with engine() as url:
        own = {"LEGATO_ENGINE_SCAN": "0", "LEGATO_ENGINES": url, "LEGATO_ENGINE_PIPE": f"{tmp_path}/s", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "legato_gpu_agent", *words]
        with subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout
            line = next(line for line in process.stdout if "answers 500" in line)
            process.kill()
    assert not unseen(line) and r"\u001b]0;own\u0007\u001b[2J\u009b31m\u007f\u00ad no" in line


def test_a_record_of_the_log_is_one_line() -> None:
    """A traceback is indented, so that no text in it looks like a record."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter())
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("a GPU named %s", f"{HOSTILE}\n2026-01-01 00:00:00,000 ERROR forged")
    try:
        raise ValueError(f"{HOSTILE}\n2026-01-01 00:00:00,000 ERROR forged")
    except ValueError:
        log.exception("a flush failed")
    lines = out.getvalue().splitlines()
    assert not unseen(out.getvalue()) and " WARNING a GPU named " in lines[0] and "ERROR forged" in lines[0]
    assert len([line for line in lines if not line.startswith("  ")]) == 2 and "  2026-01-01 00:00:00,000 ERROR forged" in lines


def test_the_rule_is_that_of_the_ingest() -> None:
    """For every character of Unicode."""
    for code in range(sys.maxunicode + 1):
        assert visible(chr(code)) == ingest.visible(chr(code))
