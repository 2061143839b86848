"""`docker compose up` with the project's images: a stream sent to the Collector's OTLP endpoint gets its verdict.

Runs on the engine that DOCKER_HOST names (`.ci/run` starts one with tests/docker/engine.sh). The twin replaces ClickHouse.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from helpers.builders.spans import native_span, request
from helpers.repo.repository import ROOT
from helpers.servers import collector
from helpers.servers.ports import free_port
from helpers.servers.reading import stream
from helpers.servers.serving import legato
from helpers.servers.waiting import until

PROTOBUF = {"content-type": "application/x-protobuf"}
PROJECT = "legato-test"


@dataclass
class Stack:
    """The running services: their environment and their OTLP and read URLs."""

    environ: dict[str, str]
    otlp: str
    read: str

    def compose(self, *arguments: str, timeout_s: float = 600) -> str:
        """Run `docker compose` with these arguments and return its output. It must succeed."""
        files = ["-f", "docker-compose.yml", "-f", "tests/docker/compose.yml"]
        command = ["docker", "compose", "-p", PROJECT, *files, "--profile", "demo", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def send(self, streams: int, token: str | None = None) -> httpx.Response:
        """Send streams of a client that held one chunk for 690 ms to the Collector."""
        body = request({"service.name": "outside"})
        for _ in range(streams):
            made = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9)
            native_span(body, made["attributes"], duration_ns=made["duration_ns"])
        token = self.environ["LEGATO_TOKEN"] if token is None else token
        headers = {**PROTOBUF, "authorization": f"Bearer {token}"}
        return httpx.post(f"{self.otlp}/v1/traces", content=body.SerializeToString(), headers=headers, timeout=30)

    def query(self, sql: str) -> str:
        """The result of a query with the operator's read token."""
        headers = {"authorization": f"Bearer {self.environ['LEGATO_READ_TOKEN']}"}
        reply = httpx.post(self.read, content=sql, headers=headers, timeout=30)
        assert reply.status_code == 200, reply.text
        return reply.text.strip()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Build and start all services and the demo load, wait until they are healthy, and remove them at the end."""
    if not os.environ.get("DOCKER_HOST") or shutil.which("docker") is None:
        pytest.skip("no Docker engine: tests/docker/engine.sh starts one, and DOCKER_HOST names it")
    if why := collector.missing():
        pytest.skip(why)
    own = not (ROOT / ".env").exists()
    subprocess.run([sys.executable, "deploy/make_env.py"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    values = dict(line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines())
    ports = {name: str(free_port()) for name in ("LEGATO_READ_PORT", "LEGATO_WEB_PORT", "LEGATO_OTLP_HTTP_PORT", "LEGATO_OTLP_GRPC_PORT")}
    made = Stack(
        {**os.environ, **values, **ports},
        f"http://127.0.0.1:{ports['LEGATO_OTLP_HTTP_PORT']}",
        f"http://127.0.0.1:{ports['LEGATO_READ_PORT']}",
    )
    build_collector = [
        "docker",
        "build",
        "-q",
        "-t",
        "otel/opentelemetry-collector-contrib:0.159.0",
        "-f",
        "tests/docker/collector.Dockerfile",
    ]
    subprocess.run([*build_collector, str(collector.BINARY.parent)], cwd=ROOT, check=True, capture_output=True)
    try:
        made.compose("build")
        made.compose("up", "--detach", "--wait")
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5")
        if own:
            (ROOT / ".env").unlink()
            shutil.rmtree(ROOT / ".secrets")


def of(service: str) -> str:
    """A SQL condition for the rows of this service's streams."""
    return f"trace_id IN (SELECT trace_id FROM streams WHERE service_name = '{service}')"


def test_a_stream_gets_its_verdict(stack: Stack) -> None:
    """Streams sent to the Collector's published port with a token are stored, judged and rolled up; `legato blame` reads them too."""
    assert stack.send(3).status_code == 200
    until(lambda: stack.query(f"SELECT count(), any(cause) FROM verdicts FINAL WHERE {of('outside')}") == "3\tconsumer", 90)
    until(lambda: stack.query("SELECT sum(streams) FROM stream_minutes FINAL WHERE service_name = 'outside'") == "3", 90)
    assert stack.query("SELECT DISTINCT tenant FROM streams") == "main"
    environ = {"LEGATO_READ_URL": stack.read, "LEGATO_READ_PASSWORD": stack.environ["LEGATO_READ_TOKEN"]}
    blame = legato("blame", environ=environ)
    assert blame.returncode == 0 and "consumer" in blame.stdout, blame.stderr


def test_the_demo_load_has_engine_steps(stack: Stack) -> None:
    """The demo server, clients, engine plugin and agent run in their containers: two vantages, steps, and stalls judged with the steps."""
    until(lambda: stack.query("SELECT uniqExact(vantage) FROM streams WHERE startsWith(service_name, 'demo-')") == "2", 120)
    until(lambda: stack.query("SELECT count() > 0 FROM engine_steps") == "1", 90)
    until(lambda: stack.query(f"SELECT count() > 0 FROM verdicts FINAL WHERE {of('demo-app')} AND engine_id != ''") == "1", 90)


def test_the_collectors_queue_is_in_the_store(stack: Stack) -> None:
    """The alert rule on the Collector's queue has data, from the host name in the configuration."""
    rule = (ROOT / "dashboards" / "alerts" / "collector_backlog.sql").read_text(encoding="utf-8")
    until(lambda: stack.query(rule).startswith("collector\totlp_http/legato\t0\t"), 90)


def test_requests_without_a_valid_token_are_rejected(stack: Stack) -> None:
    """The Collector answers 401 to a wrong token, the read endpoint 403 to none; `/ping` needs no token."""
    assert stack.send(1, token="wrong-token").status_code == 401
    assert httpx.post(stack.read, content="SELECT 1").status_code == 403
    assert httpx.get(f"{stack.read}/ping").status_code == 200


def test_every_container_is_confined(stack: Stack) -> None:
    """Running containers are not root, have a read-only root file system and no capabilities, and log no secret."""
    ids = stack.compose("ps", "--quiet").split()
    inspected = json.loads(subprocess.run(["docker", "inspect", *ids], env=stack.environ, capture_output=True, check=True).stdout)
    assert len(inspected) == 5
    for each in inspected:
        assert each["Config"]["User"] not in ("", "0", "root"), each["Name"]
        assert each["HostConfig"]["ReadonlyRootfs"] and each["HostConfig"]["CapDrop"] == ["ALL"], each["Name"]
        secrets = [value for name, value in stack.environ.items() if name in ("LEGATO_TOKEN", "LEGATO_READ_TOKEN", "LEGATO_STORE_PASSWORD")]
        logs = subprocess.run(["docker", "logs", each["Id"]], env=stack.environ, capture_output=True, text=True, check=True)
        assert not any(secret in logs.stdout + logs.stderr for secret in secrets), each["Name"]


def test_the_collector_buffers_while_the_ingest_is_down(stack: Stack) -> None:
    """Streams acknowledged while the ingest is down, before the Collector is killed too, are all stored later, once each."""
    before = int(stack.query("SELECT count() FROM streams WHERE service_name = 'outside'"))
    stack.compose("kill", "--signal", "KILL", "ingest")
    assert [stack.send(2).status_code for _ in range(5)] == [200] * 5
    stack.compose("kill", "--signal", "KILL", "collector")
    stack.compose("up", "--detach", "--wait")
    until(
        lambda: (
            stack.query("SELECT count(), uniqExact(trace_id) FROM streams WHERE service_name = 'outside'")
            == f"{before + 10}\t{before + 10}"
        )
    )
