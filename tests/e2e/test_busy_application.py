"""A real application that blocks its own event loop: the stalls that this causes are charged to the application, not to the connection."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

from e2e.test_live import APPLICATION, answers, first, running
from helpers.servers.ports import free_port
from helpers.servers.serving import serve_process
from legato_ingest.cli.client import Reader

# Beside other tests the server would not send evenly, and its delays are rightly charged to other causes.
pytestmark = pytest.mark.serial
STREAMS = 4
# One row per stall: the part of the application's own loop, and what is charged to it.
STALLS = """
SELECT lower(hex(trace_id)) AS trace, cause, confidence, gap_us, excess_us, parts['consumer'] / 1e3 AS consumer_us,
    parts['connection'] / 1e3 AS connection_us
FROM verdicts FINAL
WHERE cause != 'base' AND vantage = 'client'"""


def test_what_the_own_loop_explains_is_charged_to_the_application(tmp_path: pathlib.Path) -> None:
    """Four streams, two of them raw responses, while the loop is blocked for 0.3 to 0.8 s again and again; the server sends evenly."""
    port = free_port()
    settings = {"LEGATO_ATTRIBUTE_EVERY_S": "0.5", "LEGATO_ATTRIBUTE_GRACE_S": "1"}
    with serve_process(tmp_path / "store", **settings) as serve, running("server", str(port), serve.otlp):
        assert first(lambda: answers(f"http://127.0.0.1:{port}/"), 30)
        url = f"http://127.0.0.1:{port}/v1"
        subprocess.run([sys.executable, str(APPLICATION), "busy", url, serve.otlp, str(STREAMS)], check=True, timeout=60)
        reader = Reader(serve.read)
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len({row["trace"] for row in rows}) < STREAMS:
            rows = [dict(row) for row in reader.rows(STALLS)]
            time.sleep(0.5)
    assert len({row["trace"] for row in rows}) == STREAMS and len(rows) >= 20, len(rows)
    causes = [row["cause"] for row in rows]
    charged = sum(row["consumer_us"] for row in rows) / sum(int(row["excess_us"]) for row in rows)
    print(f"{len(rows)} stalls, {charged:.3f} of their excess at the application; {sorted(set(causes))}")
    assert causes.count("consumer") >= 0.95 * len(causes) and "connection" not in causes, causes
    assert charged == pytest.approx(1, abs=0.05)
