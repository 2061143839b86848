"""The checks of `legato doctor` that name the rows of the alert rule `ingest_backlog`: the queue in use, and silent processes."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from fastapi import FastAPI, Response
from prometheus_client import generate_latest

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request
from helpers.builders.world_spans import put
from helpers.servers.reading import reading
from helpers.servers.serving import served
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.cli.doctor.data import engine_ids, instances, keeping_up
from legato_ingest.cli.doctor.findings import Setup
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.settings import load
from legato_ingest.storage import Store


def sampled(store: Store, host: str, ago_s: float, up: float = 1.0) -> None:
    """A sample of `legato serve` on a host about itself."""
    body, now = metrics_request({"host.name": host}), time.time_ns()
    gauge(body, "legato_up", up, now - round(ago_s * 1e9))
    store.insert("node_samples", received_points(body, tenant="", now_ns=now, limits=Limits()).samples)


def test_a_process_that_was_killed_is_a_fault(store: Store) -> None:
    """One that was stopped is not: its last sample is 0. Without samples nothing is known."""
    with reading(store) as url:
        setup = Setup(load(), "", url)
        assert instances(setup).state == "skipped"
        sampled(store, "here", 10)
        sampled(store, "stopped", 500)
        sampled(store, "stopped", 400, up=0.0)
        assert (instances(setup).state, instances(setup).found) == ("well", "none of 2 has gone silent in the last hour")
        sampled(store, "killed", 400)
        found = instances(setup)
    assert found.state == "fault" and re.search(r"silent: killed for 4\d\d s", found.found) and "stopped" not in found.found and found.todo


def stepped(store: Store, name: str, started_s_ago: float, seconds: range) -> None:
    """Steps of a process of this engine id, which began so long ago; ``seconds``: their times since then."""
    start_ns = time.time_ns() - round(started_s_ago * 1e9)
    made = [Step(number + 1, start_ns + second * 10**9, 1000, 1) for number, second in enumerate(seconds)]
    put(store, steps_request(Engine(name, start_ns), made, [], []), time.time_ns())


def test_one_id_for_the_engines_of_two_nodes_is_a_fault(store: Store) -> None:
    """A restarted engine is one engine. On one host it may be several API servers of one vLLM, which is a warning."""
    with reading(store) as url:
        setup = Setup(load(), "", url)
        assert engine_ids(setup).state == "well"
        stepped(store, "restarted", 900, range(0, 300, 20))
        stepped(store, "restarted", 600, range(0, 300, 20))
        stepped(store, "restarted/1", 900, range(0, 600, 20))
        assert engine_ids(setup).state == "well"
        stepped(store, "127.0.0.1:8000", 900, range(0, 300, 20))
        stepped(store, "127.0.0.1:8000", 800, range(0, 300, 20))
        found = engine_ids(setup)
        assert found.state == "fault" and "127.0.0.1:8000 (2 processes)" in found.found and "LEGATO_ENGINE_ID" in found.todo
        assert "restarted" not in found.found
        for host, state in (("one", "warning"), ("two", "fault")):
            body, now = metrics_request({"host.name": host, "legato.engine.id": "127.0.0.1:8000"}), time.time_ns()
            gauge(body, "legato.engine.up", 1.0, now)
            store.insert("node_samples", received_points(body, tenant="", now_ns=now, limits=Limits()).samples)
            assert engine_ids(setup).state == state


@pytest.mark.parametrize(("share", "state"), [(0.0, "well"), (0.5, "well"), (0.51, "fault")])
def test_a_queue_that_is_over_half_full_is_a_fault(share: float, state: str) -> None:
    """The figure is that of `/metrics`."""
    metrics, app = Metrics(), FastAPI()
    metrics.queue_bytes_max.set(1_000)
    metrics.queue_bytes.set(1_000 * share)
    app.get("/metrics")(lambda: Response(generate_latest(metrics.registry)))
    with served(app) as url:
        assert httpx.get(f"{url}/metrics").status_code == 200
        found = keeping_up(Setup(load(), url, ""))
    assert found.state == state and ("51% full" in found.found) == (state == "fault")
