"""A `legato serve` that a bench kills and restarts, and the comparison of its store with the acknowledgements.

Every row in the store is compared with the acknowledgements by (trace, span) and revision. A stream is kept if the row that queries see has
its newest acknowledged revision with all its chunks. No revision may be stored twice.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Set
from typing import NamedTuple

import httpx

from helpers.servers.ports import free_port

__all__ = ["CHUNKS", "Found", "Rev", "Serve", "judge"]

# Of every stream that these benches send.
CHUNKS = 20
_READY_S_MAX = 60
# Rows a query; the endpoint has a bound on rows of one result.
_PAGE = 200_000

Rev = tuple[str, str, int]


class Found(NamedTuple):
    """Counts of acknowledged streams that are missing, of doubled rows, and of stored streams that were not acknowledged."""

    lost: int
    doubled: int
    strangers: int


class Serve:
    """A `legato serve` that can be killed and started again on the same store and ports; ``process`` is the one that runs."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: pathlib.Path) -> None:
        self.otlp, self.read = free_port(), free_port()
        self._environ = {
            **os.environ,
            "LEGATO_STORE": f"chdb://{folder}/store",
            "LEGATO_OTLP_PORT": str(self.otlp),
            "LEGATO_READ_PORT": str(self.read),
        }
        self._log = (folder / "serve.log").open("ab")
        self.start()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "legato_ingest", "serve"]
        self.process = subprocess.Popen(command, env=self._environ, stdout=self._log, stderr=self._log)
        until = time.monotonic() + _READY_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.otlp}/readyz").status_code == 200:
                    return
            if self.process.poll() is not None:
                raise SystemExit(f"legato serve ended with status {self.process.returncode}: see {self._log.name}")
            time.sleep(0.02)
        raise SystemExit(f"legato serve was not ready within {_READY_S_MAX} s: see {self._log.name}")

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as a user would."""
        self.process.terminate()
        self.process.wait(60)
        self._log.close()

    def rows(self, sql: str) -> list[list[str]]:
        """The rows of a query through the read endpoint."""
        reply = httpx.post(f"http://127.0.0.1:{self.read}/", content=f"{sql} FORMAT TSV", timeout=120)
        reply.raise_for_status()
        return [line.split("\t") for line in reply.text.splitlines()]


def judge(serve: Serve, revs: Set[Rev]) -> Found:
    """Compare what was acknowledged with what is stored.

    (The store merges a snapshot away once it has the rev after it, so older revs are no loss.)
    """
    newest = collections.Counter[tuple[str, str]]()
    for trace, span, rev in revs:
        newest[trace, span] = max(newest[trace, span], rev)
    found = collections.Counter[tuple[str, str]]()
    twice = strangers = 0
    pages = 1 + len(newest) // _PAGE
    for page in range(pages):
        where = f"WHERE modulo(cityHash64(trace_id), {pages}) = {page}"
        ((rows, distinct),) = serve.rows(f"SELECT count(), uniqExact(trace_id, span_id, rev) FROM stream_revs {where}")
        twice += int(rows) - int(distinct)
        for trace, span, row_rev, chunks in serve.rows(f"SELECT hex(trace_id), hex(span_id), rev, length(dt_us) FROM streams {where}"):
            key = trace.lower(), span.lower()
            twice += key in found
            strangers += key not in newest or int(row_rev) > newest[key]
            found[key] = int(row_rev) if int(chunks) == CHUNKS else 0
    return Found(sum(found[key] < rev for key, rev in newest.items()), twice, strangers)
