"""Which collectors a node has, by what was set."""

from __future__ import annotations

import pathlib
import socket
import threading
import time
from collections.abc import Iterable

import pytest

from helpers.servers.waiting import until
from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.agent.settings import Settings, SettingsError
from legato_gpu_agent.collectors import Absent, discovery
from legato_gpu_agent.collectors import runner as module
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.registry import Roster
from legato_gpu_agent.collectors.runner import Basket


def test_where_iterations_are_read_finished_requests_are_too() -> None:
    """No setting is needed for them; each server has both collectors, and a name of its own."""
    environ = {"LEGATO_ITERATIONS": "a=http://127.0.0.1:9,http://127.0.0.1:10", "LEGATO_ENGINE_SCAN": "0"}
    names = [watch.name for watch in Roster(Settings.from_env(environ), Basket(), Metrics()).watches()]
    assert names[-4:] == ["iterations a", "iterations 127.0.0.1:10", "perf metrics a", "perf metrics 127.0.0.1:10"]


@pytest.mark.parametrize(("listens", "named"), [("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.2"), ("127.0.0.2", "127.0.0.2")])
def test_where_iterations_are_read_nobody_looks_for_a_page(monkeypatch: pytest.MonkeyPatch, listens: str, named: str) -> None:
    """What is read there is gone for others: whoever looks for engines leaves that server alone, by whatever of its host's addresses it is
    named.
    """
    with socket.create_server((listens, 0)) as door:
        port = door.getsockname()[1]
        monkeypatch.setattr(discovery, "PORTS", {port})
        roster = Roster(Settings.from_env({"LEGATO_ITERATIONS": f"http://{named}:{port}"}), Basket(), Metrics())
        (finder,) = (watch.collector for watch in roster.watches() if isinstance(watch.collector, discovery.EngineFinder))
        with pytest.raises(Absent):
            list(finder.collect(1))
        door.setblocking(False)
        with pytest.raises(BlockingIOError):
            door.accept()


def test_a_server_whose_name_nobody_knows_yet_is_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its name is known nobody asks what listens at its port, and then by its address."""
    names: dict[str, str] = {}

    def answer(host: str, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host not in names:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return [(2, 1, 6, "", (names[host], 0))]

    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        monkeypatch.setattr(discovery, "PORTS", {port})
        monkeypatch.setattr(socket, "getaddrinfo", answer)
        roster = Roster(Settings.from_env({"LEGATO_ITERATIONS": f"http://gpu7:{port}"}), Basket(), Metrics())
        (finder,) = (watch.collector for watch in roster.watches() if isinstance(watch.collector, discovery.EngineFinder))
        door.setblocking(False)
        for known in ({}, {}, {"gpu7": "127.0.0.1"}):
            names.update(known)
            with pytest.raises(Absent):
                list(finder.collect(1))
            with pytest.raises(BlockingIOError):
                door.accept()


def test_requests_without_steps_are_refused(tmp_path: pathlib.Path) -> None:
    """They would wait for steps that nobody tells, and nobody would hear of it."""
    environ = {"LEGATO_ENGINE_PIPE": str(tmp_path / "s"), "LEGATO_ENGINE_SCAN": "0", "LEGATO_REQUEST_FILES": f"prod={tmp_path}"}
    with pytest.raises(SettingsError, match="prod, whose steps nobody tells.*set LEGATO_FORWARD_PASSES=prod="):
        Roster(Settings.from_env(environ), Basket(), Metrics())
    named = Settings.from_env({**environ, "LEGATO_FORWARD_PASSES": "prod=tcp://127.0.0.1:9"})
    names = {watch.name for watch in Roster(named, Basket(), Metrics()).watches()}
    assert {"forward passes prod", "request files prod"} <= names


def test_steps_of_one_engine_come_from_one_place() -> None:
    """Of two sources one would be dropped, and nobody would hear of it."""
    environ = {"LEGATO_ITERATIONS": "e=http://127.0.0.1:9", "LEGATO_FORWARD_PASSES": "e=tcp://127.0.0.1:10", "LEGATO_ENGINE_SCAN": "0"}
    with pytest.raises(SettingsError, match="both tell the steps of e: leave one of them out"):
        Roster(Settings.from_env(environ), Basket(), Metrics())


class _Stuck:
    """A collector that hangs until it is released."""

    name, every_s = "stuck", 0.0

    def __init__(self) -> None:
        self.release = threading.Event()

    def collect(self, now_ns: int) -> Iterable[Found]:
        self.release.wait(30)
        return ()


def test_those_that_hang_are_told_when_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no others."""
    monkeypatch.setattr(module, "_HANGS_S", 0.02)
    basket, stuck = Basket(), _Stuck()
    roster = Roster(Settings.from_env({"LEGATO_ENGINE_SCAN": "0"}), basket, Metrics())
    roster.add(stuck)
    thread = threading.Thread(target=roster.watches()[-1].round)
    thread.start()
    try:
        until(lambda: roster.watches()[-1].status().state == "hanging")
        now_ns = time.time_ns()
        roster.heed(now_ns)
        ((sample,), _) = basket.empty()
        assert sample.time_ns == now_ns
        assert sample.found == Reading("legato.agent.collector.up", "1", 0.0, (("legato.collector", "stuck"),))
    finally:
        stuck.release.set()
        thread.join(10)
