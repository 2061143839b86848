"""The cost of scraping an engine and reading a GPU: the agent's share of a core, at one and at ten rounds per second.

The agent is the command that users run, with all sources of a node (metrics endpoint, GPU, host); only its CPU time counts. The endpoint
serves a real vLLM text with growing numbers. The GPU is the tests' fake library behind NVIDIA's bindings: a call costs the agent its usual
time, and the driver none.
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

TEXT = ROOT / "tests" / "gpu_agent" / "data" / "responses" / "vllm_0.32.txt"
WARM_UP_S = 5.0
_COUNTER = re.compile(rb"^(vllm:(?:generation_tokens_total|prompt_tokens_total|inter_token_latency_seconds_[a-z]+)\S*) ([0-9.e+]+)$", re.M)


class _Endpoint(http.server.BaseHTTPRequestHandler):
    """Serves the text, with counters that grow at each request."""

    protocol_version = "HTTP/1.1"
    text = TEXT.read_bytes()
    served = 0

    def do_GET(self) -> None:
        """Serve the text."""
        type(self).served += 1
        grown = _COUNTER.sub(lambda line: line[1] + b" " + repr(float(line[2]) + 250.0 * self.served).encode(), self.text)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(grown)))
        self.end_headers()
        self.wfile.write(grown)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def _engine() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def core_share(folder: pathlib.Path, served: Served, sample_ms: int, seconds: float) -> tuple[float, int]:
    """Return the agent's CPU time divided by wall time, and the number of scrapes in that time."""
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
                scrapes, before, began = _Endpoint.served, processor_s(process.pid), time.monotonic()
                time.sleep(seconds)
                share = (processor_s(process.pid) - before) / (time.monotonic() - began)
                scrapes = _Endpoint.served - scrapes
            finally:
                process.terminate()
                process.wait(30)
    if scrapes < 0.9 * seconds * 1000 / sample_ms:
        raise SystemExit(f"{scrapes} scrapes in {seconds:.0f} s: expected {seconds * 1000 / sample_ms:.0f}")
    return share, scrapes


def processor_s(pid: int) -> float:
    """Return the CPU time of a process so far, in s, with a resolution of 1 ns."""
    fields = pathlib.Path(f"/proc/{pid}/schedstat")
    total = 0
    for task in (fields.parent / "task").iterdir():
        # A thread may end while its file is read.
        with suppress(OSError):
            total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9
