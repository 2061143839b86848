"""The OpenTelemetry Collector for tests and benchmarks: the binary of `make collector` with configurations of `collector/`.

Each instance has its own free ports and can be started, killed and started again. It is ready when its health check answers; only a kill
after that is a crash under load. A kill during the start is a different case, which benchmarks count separately.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

import httpx

from helpers.repo.repository import ROOT
from helpers.servers.ports import free_port

__all__ = ["BINARY", "CONFIGS", "Collector", "missing", "run", "validate"]

CONFIGS = ROOT / "collector"
BINARY = CONFIGS / "dist" / "otelcol-legato"
_READY_S_MAX = 60
_SAMPLE = re.compile(r"^(\w+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


def missing() -> str:
    """Build the Collector if necessary (about 3 minutes). Return why that is impossible, or an empty text."""
    if BINARY.exists():
        return ""
    if shutil.which("go") is None:
        return "the Collector needs Go 1.25 or newer to be built (`make collector`)"
    built = subprocess.run(["make", "collector"], cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if built.returncode == 0 else f"`make collector` failed: {built.stderr[-500:]}"


def _command(configs: Sequence[str]) -> list[str]:
    return [str(BINARY), *(f"--config={CONFIGS / name}" for name in configs)]


def validate(configs: Sequence[str], settings: Mapping[str, str]) -> str:
    """The Collector's error for these configurations; empty if it accepts them."""
    binary, *arguments = _command(configs)
    environ = {**os.environ, **settings}
    done = subprocess.run([binary, "validate", *arguments], env=environ, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr or done.stdout


class Collector:
    """A Collector with these configurations and settings (``LEGATO_*``). Its queue and log are in ``folder``.

    ``prefix`` is a command line that runs the Collector, for example on a small disk.
    """

    def __init__(self, folder: pathlib.Path, configs: Sequence[str], prefix: Sequence[str] = (), **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ports = {name: str(free_port()) for name in ("GRPC", "HTTP", "HEALTH", "METRICS")}
        self.http, self.grpc = f"http://127.0.0.1:{ports['HTTP']}", f"127.0.0.1:{ports['GRPC']}"
        self._health, self.metrics_url = f"http://127.0.0.1:{ports['HEALTH']}/", f"http://127.0.0.1:{ports['METRICS']}/metrics"
        self.queue, self.log = folder / "queue", folder / "collector.log"
        self._command = [*prefix, *_command(configs)]
        self._environ = {
            **os.environ,
            **{f"LEGATO_COLLECTOR_{name}_PORT": port for name, port in ports.items()},
            "LEGATO_COLLECTOR_QUEUE_DIR": str(self.queue),
            **settings,
        }
        self.process: subprocess.Popen[bytes]

    def spawn(self, **settings: str) -> None:
        """Start the process without waiting until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env={**self._environ, **settings}, stdout=log, stderr=log)

    def start(self, **settings: str) -> None:
        """Start the process with additional settings and wait up to 60 s until it is ready."""
        self.spawn(**settings)
        until = time.monotonic() + _READY_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self._health).status_code == 200:
                    return
            assert self.process.poll() is None, f"the Collector ended: {self.log.read_text()[-2_000:]}"
            time.sleep(0.02)
        raise AssertionError(f"the Collector was not ready within {_READY_S_MAX} s: see {self.log}")

    def kill(self) -> None:
        """SIGKILL: nothing is flushed."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop the process with SIGTERM and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def metric(self, name: str) -> float:
        """The sum of one of the Collector's metrics over all label values; 0 if it has none yet."""
        text = httpx.get(self.metrics_url).text
        return sum(float(value) for found, value in _SAMPLE.findall(text) if found == name)


@contextlib.contextmanager
def run(folder: pathlib.Path, *configs: str, prefix: Sequence[str] = (), **settings: str) -> Iterator[Collector]:
    """Run a Collector, yield it when it is ready, and stop it at the end."""
    collector = Collector(folder, configs, prefix, **settings)
    collector.start()
    try:
        yield collector
    finally:
        if collector.process.poll() is None:
            collector.stop()
