"""The collectors of a node, according to its settings."""

from __future__ import annotations

import pathlib
import socket
import threading
import time
from collections.abc import Iterable

import pytest

from helpers.servers.waiting import until
from legato_gpu_agent.agent import collector_runner as module
from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_registry import CollectorRegistry
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.settings import Settings, SettingsError
from legato_gpu_agent.collectors import discovery
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.measurement import Measured, Measurement


def test_finished_requests_are_read_with_iterations() -> None:
    """Without a further setting; each server has both collectors, with different names."""
    environ = {"LEGATO_ITERATIONS": "a=http://127.0.0.1:9,http://127.0.0.1:10", "LEGATO_ENGINE_SCAN": "0"}
    names = [runner.name for runner in CollectorRegistry(Settings.from_env(environ), Buffer(), SelfMetrics()).runners()]
    assert names[-4:] == ["iterations a", "iterations 127.0.0.1:10", "perf metrics a", "perf metrics 127.0.0.1:10"]


@pytest.mark.parametrize(("address", "named"), [("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.2"), ("127.0.0.2", "127.0.0.2")])
def test_servers_with_iterations_are_not_probed(monkeypatch: pytest.MonkeyPatch, address: str, named: str) -> None:
    """A read removes data that another collector needs, so discovery leaves these servers alone, under any address of their host."""
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(discovery, "PORTS", {port})
        registry = CollectorRegistry(Settings.from_env({"LEGATO_ITERATIONS": f"http://{named}:{port}"}), Buffer(), SelfMetrics())
        (collector,) = (runner.collector for runner in registry.runners() if isinstance(runner.collector, discovery.EngineDiscovery))
        with pytest.raises(NotAvailable):
            list(collector.collect(1))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_server_with_an_unresolved_name_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its name is resolved its port is not probed, afterwards its address."""
    names: dict[str, str] = {}

    def answer(host: str, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host not in names:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return [(2, 1, 6, "", (names[host], 0))]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(discovery, "PORTS", {port})
        monkeypatch.setattr(socket, "getaddrinfo", answer)
        registry = CollectorRegistry(Settings.from_env({"LEGATO_ITERATIONS": f"http://gpu7:{port}"}), Buffer(), SelfMetrics())
        (collector,) = (runner.collector for runner in registry.runners() if isinstance(runner.collector, discovery.EngineDiscovery))
        listener.setblocking(False)
        for known in ({}, {}, {"gpu7": "127.0.0.1"}):
            names.update(known)
            with pytest.raises(NotAvailable):
                list(collector.collect(1))
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_request_files_without_steps_are_rejected(tmp_path: pathlib.Path) -> None:
    """The requests would wait forever for steps, without any message."""
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "s"), "LEGATO_ENGINE_SCAN": "0", "LEGATO_REQUEST_FILES": f"prod={tmp_path}"}
    with pytest.raises(SettingsError, match="prod, and no setting names a source of its steps.*set LEGATO_FORWARD_PASSES=prod="):
        CollectorRegistry(Settings.from_env(environ), Buffer(), SelfMetrics())
    named = Settings.from_env({**environ, "LEGATO_FORWARD_PASSES": "prod=tcp://127.0.0.1:9"})
    names = {runner.name for runner in CollectorRegistry(named, Buffer(), SelfMetrics()).runners()}
    assert {"forward passes prod", "request files prod"} <= names


def test_steps_of_an_engine_have_one_source() -> None:
    """With two sources one would be dropped, without any message."""
    environ = {"LEGATO_ITERATIONS": "e=http://127.0.0.1:9", "LEGATO_FORWARD_PASSES": "e=tcp://127.0.0.1:10", "LEGATO_ENGINE_SCAN": "0"}
    with pytest.raises(SettingsError, match="both read the steps of e: remove one of them"):
        CollectorRegistry(Settings.from_env(environ), Buffer(), SelfMetrics())


class _Stuck:
    """A collector that hangs until it is released."""

    name, every_s = "stuck", 0.0

    def __init__(self) -> None:
        self.release = threading.Event()

    def collect(self, now_ns: int) -> Iterable[Measured]:
        self.release.wait(30)
        return ()


def test_hung_collectors_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement for each of them, and for no other."""
    monkeypatch.setattr(module, "_HANGS_S", 0.02)
    buffer, stuck = Buffer(), _Stuck()
    registry = CollectorRegistry(Settings.from_env({"LEGATO_ENGINE_SCAN": "0"}), buffer, SelfMetrics())
    registry.add(stuck)
    thread = threading.Thread(target=registry.runners()[-1].run_once)
    thread.start()
    try:
        until(lambda: registry.runners()[-1].status().state == "hanging")
        now_ns = time.time_ns()
        registry.report_hung(now_ns)
        (((time_ns, found),), _) = buffer.drain()
        assert time_ns == now_ns
        assert found == Measurement("legato.agent.collector.up", "1", 0.0, (("legato.collector", "stuck"),))
    finally:
        stuck.release.set()
        thread.join(10)
