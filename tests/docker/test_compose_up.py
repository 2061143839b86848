"""`docker compose up` with the project's own images: a stream goes in at the Collector's door and comes out with its verdict.

Runs on the engine that DOCKER_HOST names (`.ci/run` starts one, tests/docker/engine.sh). ClickHouse's place is taken by its twin.
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
    """The composed services, what they were told, and where they answer."""

    environ: dict[str, str]
    otlp: str
    read: str

    def compose(self, *arguments: str, timeout_s: float = 600) -> str:
        files = ["-f", "docker-compose.yml", "-f", "tests/docker/compose.yml"]
        command = ["docker", "compose", "-p", PROJECT, *files, "--profile", "demo", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def send(self, streams: int, token: str | None = None) -> httpx.Response:
        """Streams of a client that held one chunk for 690 ms, through the Collector."""
        body = request({"service.name": "outside"})
        for _ in range(streams):
            made = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9)
            native_span(body, made["attributes"], duration_ns=made["duration_ns"])
        token = self.environ["LEGATO_TOKEN"] if token is None else token
        headers = {**PROTOBUF, "authorization": f"Bearer {token}"}
        return httpx.post(f"{self.otlp}/v1/traces", content=body.SerializeToString(), headers=headers, timeout=30)

    def ask(self, sql: str) -> str:
        """As the operator."""
        headers = {"authorization": f"Bearer {self.environ['LEGATO_READ_TOKEN']}"}
        reply = httpx.post(self.read, content=sql, headers=headers, timeout=30)
        assert reply.status_code == 200, reply.text
        return reply.text.strip()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """All of it, up and well, with the demo's load; taken away at the end."""
    if not os.environ.get("DOCKER_HOST") or shutil.which("docker") is None:
        pytest.skip("no Docker engine: tests/docker/engine.sh starts one, and DOCKER_HOST names it")
    if why := collector.missing():
        pytest.skip(why)
    own = not (ROOT / ".env").exists()
    subprocess.run([sys.executable, "deploy/make_env.py"], cwd=ROOT, check=True)
    values = dict(line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines())
    ports = {name: str(free_port()) for name in ("LEGATO_READ_PORT", "LEGATO_OTLP_HTTP_PORT", "LEGATO_OTLP_GRPC_PORT")}
    made = Stack(
        {**os.environ, **values, **ports},
        f"http://127.0.0.1:{ports['LEGATO_OTLP_HTTP_PORT']}",
        f"http://127.0.0.1:{ports['LEGATO_READ_PORT']}",
    )
    stand_in = ["docker", "build", "-q", "-t", "otel/opentelemetry-collector-contrib:0.159.0", "-f", "tests/docker/collector.Dockerfile"]
    subprocess.run([*stand_in, str(collector.BINARY.parent)], cwd=ROOT, check=True, capture_output=True)
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
    """The condition that a row is of one of this service's streams."""
    return f"trace_id IN (SELECT trace_id FROM streams WHERE service_name = '{service}')"


def test_a_stream_comes_back_with_its_verdict(stack: Stack) -> None:
    """In at the Collector's published port with a token, out at the read port: stored, judged, rolled up; the command reads it too."""
    assert stack.send(3).status_code == 200
    until(lambda: stack.ask(f"SELECT count(), any(cause) FROM verdicts FINAL WHERE {of('outside')}") == "3\tconsumer", 90)
    until(lambda: stack.ask("SELECT sum(streams) FROM stream_minutes FINAL WHERE service_name = 'outside'") == "3", 90)
    assert stack.ask("SELECT DISTINCT tenant FROM streams") == "main"
    environ = {"LEGATO_READ_URL": stack.read, "LEGATO_READ_PASSWORD": stack.environ["LEGATO_READ_TOKEN"]}
    blame = legato("blame", environ=environ)
    assert blame.returncode == 0 and "consumer" in blame.stdout, blame.stderr


def test_the_demos_load_comes_with_its_engines_steps(stack: Stack) -> None:
    """Server, clients, the engine's plugin and the agent, each in its container: both vantages, steps, and stalls judged by them."""
    until(lambda: stack.ask("SELECT uniqExact(vantage) FROM streams WHERE startsWith(service_name, 'demo-')") == "2", 120)
    until(lambda: stack.ask("SELECT count() > 0 FROM engine_steps") == "1", 90)
    until(lambda: stack.ask(f"SELECT count() > 0 FROM verdicts FINAL WHERE {of('demo-app')} AND engine_id != ''") == "1", 90)


def test_who_has_no_token_is_nobody(stack: Stack) -> None:
    """At the Collector's door and at the read door."""
    assert stack.send(1, token="wrong-token").status_code == 401
    assert httpx.post(stack.read, content="SELECT 1").status_code == 403
    assert httpx.get(f"{stack.read}/ping").status_code == 200


def test_every_container_is_held_in(stack: Stack) -> None:
    """As they run: not root, a root file system that cannot be written, no capabilities."""
    ids = stack.compose("ps", "--quiet").split()
    inspected = json.loads(subprocess.run(["docker", "inspect", *ids], env=stack.environ, capture_output=True, check=True).stdout)
    assert len(inspected) == 5
    for each in inspected:
        assert each["Config"]["User"] not in ("", "0", "root"), each["Name"]
        assert each["HostConfig"]["ReadonlyRootfs"] and each["HostConfig"]["CapDrop"] == ["ALL"], each["Name"]
        secrets = [value for name, value in stack.environ.items() if name in ("LEGATO_TOKEN", "LEGATO_READ_TOKEN", "LEGATO_STORE_PASSWORD")]
        logs = subprocess.run(["docker", "logs", each["Id"]], env=stack.environ, capture_output=True, text=True, check=True)
        assert not any(secret in logs.stdout + logs.stderr for secret in secrets), each["Name"]


def test_the_collector_keeps_what_comes_while_the_ingest_is_away(stack: Stack) -> None:
    """The ingest is killed, streams are acknowledged meanwhile, the Collector is killed too; all of them are there afterwards, once."""
    before = int(stack.ask("SELECT count() FROM streams WHERE service_name = 'outside'"))
    stack.compose("kill", "--signal", "KILL", "ingest")
    assert [stack.send(2).status_code for _ in range(5)] == [200] * 5
    stack.compose("kill", "--signal", "KILL", "collector")
    stack.compose("up", "--detach", "--wait")
    until(
        lambda: (
            stack.ask("SELECT count(), uniqExact(trace_id) FROM streams WHERE service_name = 'outside'") == f"{before + 10}\t{before + 10}"
        )
    )
