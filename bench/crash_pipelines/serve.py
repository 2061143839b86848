"""A `legato serve` that a bench kills and restarts, and the comparison of its store with the acknowledgements.

Every row in the store is compared with the acknowledgements by (trace, span) and revision. A stream is kept if the row that queries see has
its newest acknowledged revision with all its chunks. No revision may be stored twice.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Set
from typing import NamedTuple

import httpx

from helpers.servers.ports import free_port
from legato_ingest.auth.tokens import READ, WRITE, add
from legato_ingest.definitions import ALL_TENANTS

__all__ = ["CHUNKS", "Found", "Rev", "Serve", "bearer", "children", "fresh_serve", "judge", "store_pid"]

# Of every stream that these benches send.
CHUNKS = 20
_READY_S_MAX, _SETTLED_S_MAX = 60, 180
_STORE_MAIN = b"store_process_main"
# Rows a query; the endpoint has a bound on rows of one result.
_PAGE = 200_000

Rev = tuple[str, str, int]


class Found(NamedTuple):
    """Counts of acknowledged streams that are missing, of doubled rows, and of stored streams that were not acknowledged."""

    lost: int
    doubled: int
    strangers: int


class Serve:
    """A `legato serve` that can be killed and started again on the same store and ports; ``process`` is the one that runs.

    ``tenants``: the number of tenants with a token that may read (``readers``); then ``writer`` and ``greedy`` are tokens of two tenants
    that may write, and ``operator`` one that may read all tenants. Without tenants there are no tokens.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, folder: pathlib.Path, tenants: int = 0) -> None:
        self.otlp, self.read = free_port(), free_port()
        tokens = folder / "tokens.json"
        self.readers = [add(tokens, f"reader-{number}", f"tenant-{number}", READ) for number in range(tenants)]
        self.writer = add(tokens, "writer", "honest", WRITE) if tenants else ""
        self.greedy = add(tokens, "greedy", "greedy", WRITE) if tenants else ""
        self.operator = add(tokens, "operator", ALL_TENANTS, READ) if tenants else ""
        self._environ = {
            **os.environ,
            "LEGATO_STORE": f"chdb://{folder}/store",
            "LEGATO_OTLP_PORT": str(self.otlp),
            "LEGATO_READ_PORT": str(self.read),
            # Without these two listeners, so that two benches may run beside each other.
            "LEGATO_OTLP_GRPC_PORT": "0",
            "LEGATO_WEB_PORT": "0",
            **({"LEGATO_TOKENS_FILE": str(tokens)} if tenants else {}),
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

    def kill_store(self) -> None:
        """SIGKILL to the process of the store alone, while it answers; `serve` starts it again."""
        self.rows("SELECT 1")
        os.kill(store_pid(self.process.pid), signal.SIGKILL)

    def stop(self) -> None:
        """End it as a user would."""
        self.process.terminate()
        self.process.wait(60)
        self._log.close()

    def settle(self) -> None:
        """Wait until every acknowledged request is in the store: a query waits for 10 s only."""
        until = time.monotonic() + _SETTLED_S_MAX
        while time.monotonic() < until:
            lines = httpx.get(f"http://127.0.0.1:{self.otlp}/metrics").text.splitlines()
            if "legato_queue_bytes 0.0" in lines:
                return
            time.sleep(0.2)
        raise SystemExit(f"acknowledged requests were not inserted within {_SETTLED_S_MAX} s: see {self._log.name}")

    def rows(self, sql: str) -> list[list[str]]:
        """The rows of a query through the read endpoint."""
        reply = httpx.post(f"http://127.0.0.1:{self.read}/", content=f"{sql} FORMAT TSV", headers=bearer(self.operator), timeout=120)
        reply.raise_for_status()
        return [line.split("\t") for line in reply.text.splitlines()]


@contextlib.contextmanager
def fresh_serve(tenants: int = 0) -> Iterator[Serve]:
    """Run a `legato serve` with a new store."""
    with tempfile.TemporaryDirectory() as folder:
        serve = Serve(pathlib.Path(folder), tenants)
        try:
            yield serve
        finally:
            serve.stop()


def bearer(token: str) -> dict[str, str]:
    """The header with a token; none without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def children(pid: int, module: bytes) -> list[int]:
    """The child processes that run a module (Linux)."""
    found = []
    for listed in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread, or a child, may end while it is looked at.
        with contextlib.suppress(OSError):
            for child in listed.read_text(encoding="ascii").split():
                if module in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def store_pid(serve_pid: int) -> int:
    """The process of the store of a running `legato serve` (Linux); waits for it."""
    until = time.monotonic() + _READY_S_MAX
    while time.monotonic() < until:
        if found := children(serve_pid, _STORE_MAIN):
            return found[0]
        time.sleep(0.01)
    raise SystemExit(f"process {serve_pid} has no process of a store")


def judge(serve: Serve, revs: Set[Rev]) -> Found:
    """Compare what was acknowledged with what is stored.

    (The store merges a snapshot away once it has the rev after it, so older revs are no loss.)
    """
    newest = collections.Counter[tuple[str, str]]()
    for trace, span, rev in revs:
        newest[trace, span] = max(newest[trace, span], rev)
    found = collections.Counter[tuple[str, str]]()
    twice = strangers = 0
    serve.settle()
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
