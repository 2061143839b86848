"""Samples of GPUs read from a store: which engine they belong to, and how the driver's counters are added up."""

from __future__ import annotations

import pytest

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request, total
from legato_ingest.attribution.load import by_engine
from legato_ingest.attribution.load.gpu_clock_samples import gpu_clocks
from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store


def _clocks(store: Store, key: EngineKey, start_ns: int) -> list[GpuClock]:
    """Return the GPUs of one engine in 10 s, read together with those of another engine."""
    windows = {key: (start_ns, start_ns + 10**10), ("", "other"): (start_ns - 10**10, start_ns)}
    return gpu_clocks(store, windows).get(key, [])


def test_samples_are_read_as_they_were_sent(store: Store) -> None:
    """From OTLP to arrays: reasons are added up by kind over resets; samples of other tenants and engines are left out."""
    body = metrics_request({"host.name": "node-1"})
    start_ns = 1_790_000_000 * 10**9
    for second in range(6):
        at = start_ns + second * 10**9
        of = {"legato.engine.id": "127.0.0.1:8000", "hw.id": "GPU-1"}
        gauge(body, "hw.gpu.clock.sm", 1980 - 300 * (second == 3), at, attributes=of)
        # The driver was reloaded after the third second, which reset its counter.
        total(body, "hw.gpu.throttle.time", [10, 10, 10.5, 0, 0.25, 0.25][second], at, attributes={**of, "reason": "thermal_hardware"})
        total(body, "hw.gpu.throttle.time", second, at, attributes={**of, "reason": "power_cap"})
        total(body, "hw.gpu.throttle.time", 99 * second, at, attributes={**of, "legato.engine.id": "other", "reason": "thermal"})
    samples = received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0))
    store.insert("node_samples", samples.samples)
    (gpu,) = _clocks(store, ("", "127.0.0.1:8000/1"), start_ns)
    assert ((gpu.times_ns - start_ns) // 10**9).tolist() == list(range(6))
    assert (gpu.hard_ns / 1e6).round(6).tolist() == [0, 0, 500, 500, 750, 750]
    assert (gpu.soft_ns / 1e9).round(6).tolist() == [0, 1, 2, 3, 4, 5]
    assert gpu.mhz.tolist() == [1980, 1980, 1980, 1680, 1980, 1980]
    assert _clocks(store, ("another", "127.0.0.1:8000"), start_ns) == []


def test_a_shared_gpu_belongs_to_each_of_its_engines(store: Store) -> None:
    """Its samples have no engine id; a separate metric lists its engines. Another GPU of the node has no engine."""
    start_ns = 1_790_000_000 * 10**9
    body = metrics_request({"host.name": "node-1"})
    for second in range(3):
        at = start_ns + second * 10**9
        for gpu in ("GPU-1", "GPU-2"):
            total(body, "hw.gpu.throttle.time", second, at, attributes={"hw.id": gpu, "reason": "thermal"})
        for engine in ("a:1", "b:1"):
            gauge(body, "legato.gpu.engine", 1.0, at, attributes={"hw.id": "GPU-1", "legato.engine.id": engine})
    store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
    for engine, count in (("a:1", 1), ("b:1/2", 1), ("c:1", 0)):
        found = _clocks(store, ("", engine), start_ns)
        assert [len(gpu.times_ns) for gpu in found] == [3] * count
    # One engine uses the complete GPU and another a part of it: the samples have the id of the first.
    body = metrics_request({"host.name": "node-1"})
    for second in range(3):
        at = start_ns + second * 10**9
        of = {"hw.id": "GPU-3", "legato.engine.id": "d:1"}
        total(body, "hw.gpu.throttle.time", second, at, attributes={**of, "reason": "thermal"})
        for engine in ("d:1", "e:1"):
            gauge(body, "legato.gpu.engine", 1.0, at, attributes={**of, "legato.engine.id": engine})
    store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
    for engine in ("d:1", "e:1"):
        assert [len(gpu.times_ns) for gpu in _clocks(store, ("", engine), start_ns)] == [3]


def test_several_nodes_or_a_clock_without_counter_give_no_samples(store: Store) -> None:
    """A clock without the driver's counter is no evidence. If two nodes have an engine with this id, the GPUs cannot be assigned."""
    start_ns = 1_790_000_000 * 10**9
    for host in ("node-1", "node-2"):
        body = metrics_request({"host.name": host})
        for second in range(3):
            at, of = start_ns + second * 10**9, {"legato.engine.id": "127.0.0.1:8000", "hw.id": f"GPU of {host}"}
            gauge(body, "hw.gpu.clock.sm", 300, at, attributes=of)
            if host == "node-2":
                total(body, "hw.gpu.throttle.time", second, at, attributes={**of, "reason": "thermal"})
        store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
        found = _clocks(store, ("", "127.0.0.1:8000"), start_ns)
        assert [len(gpu.times_ns) for gpu in found] == ([0] if host == "node-1" else [])


def test_an_engine_with_very_many_samples_is_one_without(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that share the query keep theirs."""
    monkeypatch.setattr(by_engine, "_SAMPLES_MAX", 12)
    body, start_ns = metrics_request({"host.name": "node-1"}), 1_790_000_000 * 10**9
    for engine, count in (("few", 2), ("many", 13), ("some", 12)):
        of = {"legato.engine.id": engine, "hw.id": f"GPU of {engine}", "reason": "thermal"}
        for second in range(count):
            total(body, "hw.gpu.throttle.time", second, start_ns + second * 10**9, attributes=of)
    store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
    found = gpu_clocks(store, {("", engine): (start_ns, start_ns + 60 * 10**9) for engine in ("few", "many", "some")})
    assert {engine: [len(each.times_ns) for each in own] for (_, engine), own in found.items()} == {"few": [2], "some": [12]}
