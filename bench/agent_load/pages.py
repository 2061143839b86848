"""The cost of reading an engine's metrics page and a GPU: the agent's share of a core, at one and at ten rounds a second.

The agent is the command that users run, with everything that it reads on a node (metrics page, GPU, host); only its CPU time counts. The
metrics page is a real vLLM page with growing numbers. The GPU is the fake library of the tests behind NVIDIA's bindings: a call costs the
agent its usual time, and the driver none.
"""

from __future__ import annotations

import http.server
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from helpers.platform.nvml import FakeGpus, build, h200
from helpers.repo.repository import ROOT
from helpers.servers.serving import Served

__all__ = ["core_share"]

PAGE = ROOT / "tests" / "gpu_agent" / "data" / "pages" / "vllm_0.32.txt"
WARM_UP_S = 5.0
_COUNTER = re.compile(rb"^(vllm:(?:generation_tokens_total|prompt_tokens_total|inter_token_latency_seconds_[a-z]+)\S*) ([0-9.e+]+)$", re.M)


class _Page(http.server.BaseHTTPRequestHandler):
    """Answers with the page, its counters grown since the answer before."""

    protocol_version = "HTTP/1.1"
    text = PAGE.read_bytes()
    served = 0

    def do_GET(self) -> None:
        """The page."""
        type(self).served += 1
        grown = _COUNTER.sub(lambda line: line[1] + b" " + repr(float(line[2]) + 250.0 * self.served).encode(), self.text)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(grown)))
        self.end_headers()
        self.wfile.write(grown)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to say."""


@contextmanager
def _engine() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def core_share(folder: pathlib.Path, served: Served, sample_ms: int, seconds: float) -> tuple[float, int]:
    """The agent's processor time over wall time, and how many pages it read meanwhile."""
    gpus = FakeGpus(build(folder), folder / "gpus", h200(0))
    with _engine() as url:
        settings = {
            "LEGATO_ENGINE_PIPE": str(folder / f"s{sample_ms}"),
            "LEGATO_ENDPOINT": served.otlp,
            "LEGATO_ENGINES": f"bench-page={url}",
            "LEGATO_ENGINE_SCAN": "0",
            "LEGATO_SAMPLE_MS": str(sample_ms),
        }
        command = [sys.executable, "-m", "legato_gpu_agent"]
        with subprocess.Popen(command, env={**os.environ, **gpus.environment(), **settings}, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(WARM_UP_S)
                pages, before, began = _Page.served, processor_s(process.pid), time.monotonic()
                time.sleep(seconds)
                share = (processor_s(process.pid) - before) / (time.monotonic() - began)
                pages = _Page.served - pages
            finally:
                process.terminate()
                process.wait(30)
    if pages < 0.9 * seconds * 1000 / sample_ms:
        raise SystemExit(f"{pages} pages were read in {seconds:.0f} s, {seconds * 1000 / sample_ms:.0f} were due")
    return share, pages


def processor_s(pid: int) -> float:
    """Processor seconds of a process so far, to the ns."""
    fields = pathlib.Path(f"/proc/{pid}/schedstat")
    total = 0
    for task in (fields.parent / "task").iterdir():
        # A thread may end while they are read.
        with suppress(OSError):
            total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9
