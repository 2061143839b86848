"""`legato-gpu-agent` on a complete node as a real process: engines, GPUs, the host and forward passes, up to the rows in the store."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from helpers.builders.scripted import Server, always, answer, silent
from helpers.platform.nvml import FakeGpus, build, h200
from helpers.servers.ports import free_port, is_open
from helpers.servers.serving import Served
from helpers.servers.waiting import until
from legato_ingest.cli.client import Reader

RESPONSES = pathlib.Path(__file__).parents[1] / "data" / "responses"
HOST = "node-7"


@contextlib.contextmanager
def agent(folder: pathlib.Path, endpoint: str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the command without probing ports; yield it and the port of its metrics."""
    port = free_port()
    environ = {
        **os.environ,
        "LEGATO_ENGINE_PIPE": str(folder / "s"),
        "LEGATO_ENDPOINT": endpoint,
        "LEGATO_ENGINE_FLUSH_MS": "100",
        "LEGATO_SAMPLE_MS": "100",
        "LEGATO_ENGINE_SCAN": "0",
        "LEGATO_HOST_NAME": HOST,
        "LEGATO_AGENT_METRICS_PORT": str(port),
        **settings,
    }
    with subprocess.Popen([sys.executable, "-m", "legato_gpu_agent"], env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: is_open(port) or process.poll() is not None)
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield process, port
        finally:
            process.kill()
            assert process.stderr
            process.stderr.close()


def one(served: Served, sql: str) -> dict[str, Any]:
    """Return the only row of a query."""
    (row,) = Reader(served.read).rows(sql)
    return row


def up(port: int) -> dict[str, bool]:
    """Return which collectors are up, from the agent's metrics."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    return {name: value == "1.0" for name, value in re.findall(r'^legato_agent_collector_up\{collector="([^"]+)"\} (\S+)$', text, re.M)}


def sent(port: int, kind: str) -> int:
    """Return the number of acknowledged records of a kind."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    found = re.search(rf'^legato_agent_sent_records_total{{kind="{kind}"}} (\S+)$', text, re.M)
    return int(float(found[1])) if found else 0


def test_a_node_becomes_rows(served: Served, tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Engine metrics, a GPU and the host: each point is stored once, with the node's name. An endpoint that hangs affects no other
    collector.
    """
    library = tmp_path_factory.getbasetemp() / "libnvidia-ml.so.1"
    gpus = FakeGpus(library if library.exists() else build(library.parent), tmp_path / "gpus", h200(0))
    text = always(answer((RESPONSES / "vllm_0.32.txt").read_bytes()))
    with Server(text) as engine, Server(silent) as hung:
        engines = f"prod={engine.url},hung={hung.url}"
        with agent(tmp_path, served.otlp, LEGATO_ENGINES=engines, **gpus.environment()) as (process, port):
            until(lambda: {name for name, good in up(port).items() if good} >= {"page prod", "gpu 0", "cpu", "network"})
            until(lambda: sent(port, "sample") > 300)
            assert not up(port)["page hung"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    ours = f"host = '{HOST}'"
    stored = one(served, f"SELECT count() AS n, uniqExact(metric, series, recorded_at) AS points FROM node_samples WHERE {ours}")
    assert int(stored["n"]) == int(stored["points"]) > 300
    metrics = one(served, f"SELECT groupUniqArray(metric) AS metrics FROM node_samples WHERE host = '{HOST}'")["metrics"]
    assert set(metrics) >= {"legato.engine.up", "hw.gpu.throttle.time", "hw.gpu.clock.sm", "system.cpu.time", "legato.agent.collector.up"}
    preemptions = "metric = 'legato.engine.preemptions' AND engine_id = 'prod'"
    counted = one(served, f"SELECT DISTINCT value, kind, start_time <= recorded_at AS since FROM node_samples WHERE {preemptions}")
    assert (counted["value"], counted["kind"], int(counted["since"])) == (39, "sum", 1)


def test_published_passes_become_steps(served: Served, tmp_path: pathlib.Path) -> None:
    """A message over ZMQ is one row of `engine_steps`; lost messages are counted."""
    endpoint = f"ipc://{tmp_path}/fpm"
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(endpoint)
        with agent(tmp_path, served.otlp, LEGATO_FORWARD_PASSES=f"sglang-0={endpoint}") as (process, port):
            assert publisher.poll(20_000) and publisher.recv() == b"\x01"
            for number in range(1, 41):
                if number != 20:
                    publisher.send_multipart([b"", number.to_bytes(8, "big"), msgspec.msgpack.encode(passed(number))])
                time.sleep(0.01)
            until(lambda: sent(port, "step") == 39)
            lost = "metric = 'legato.agent.forward_passes' AND attributes['legato.outcome'] = 'lost'"
            until(lambda: one(served, f"SELECT max(value) AS lost FROM node_samples WHERE {lost}")["lost"] == 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    columns = "count() AS n, uniqExact(step) AS steps, min(step) AS first, max(step) AS last, max(running) AS running"
    found = one(served, f"SELECT {columns} FROM engine_steps WHERE engine_id = 'sglang-0'")
    assert [int(found[name]) for name in ("n", "steps", "first", "last", "running")] == [39, 39, 1, 40, 9]


def passed(number: int) -> dict[str, Any]:
    """Return a pass as SGLang publishes it."""
    return {
        "version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": number, "wall_time": 0.01,
        "scheduled_requests": {"num_prefill_requests": 1, "sum_prefill_tokens": 128, "num_decode_requests": 8, "sum_decode_kv_tokens": 900},
        "queued_requests": {"num_prefill_requests": 2, "num_decode_requests": 0},
    }  # fmt: skip
