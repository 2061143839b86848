"""Discovery of engines over real HTTP: at ports of this process, with the real /proc."""

from __future__ import annotations

import os
import pathlib
import socket
from collections.abc import Iterator

import pytest

from helpers.builders.scripted import bound
from helpers.platform.engine_site import GRAFANA, KINDS, METRICS, PROMETHEUS, Site, kind_of, site
from helpers.servers.ports import free_port
from legato_gpu_agent.collectors import discovery
from legato_gpu_agent.collectors.base import Collector, NotAvailable
from legato_gpu_agent.collectors.discovery import EngineDiscovery
from legato_gpu_agent.collectors.engine_metrics import EngineMetrics
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.http_fetch import FetchError
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.engines.registry import ENGINES
from legato_gpu_agent.plugin.identity import engine_id_from_url

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
LIVE = Proc(pathlib.Path("/proc"))
KNOWN = discovery.PORTS


def listener_at(host: str) -> socket.socket:
    """As `bound`, at this address of this host."""
    try:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.bind((host, 0))
    except OSError as error:
        pytest.skip(f"this host has no {host}: {error}")
    return listener


def answers_for(monkeypatch: pytest.MonkeyPatch, **addresses: tuple[str, ...]) -> list[str]:
    """Answer these names with these addresses and no other name; return the queries."""
    lookups: list[str] = []
    real = socket.getaddrinfo

    def answered(host: str, port: int | None, family: int = 0, type: int = 0) -> object:
        lookups.append(host)
        if host in addresses:
            return [(2, 1, 6, "", (address, 0)) for address in addresses[host]]
        return real(host, port, family, type, flags=socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", answered)
    return lookups


class World:
    """A discovery collector with its results."""

    def __init__(self, *named: tuple[str, str], proc: Proc | None = LIVE, taken: str = "") -> None:
        self.now_s, self.added = 1_000.0, list[EngineMetrics]()
        self.is_coming = False
        self.engine_registry = EngineRegistry(LIVE)
        self.discovery = EngineDiscovery(
            named, proc, self.engine_registry, self._add, 1.0, lambda: self.now_s, excluded=[taken] if taken else []
        )

    def _add(self, collector: Collector) -> None:
        assert isinstance(collector, EngineMetrics)
        self.added.append(collector)

    def count(self) -> float:
        """Return the reported number of engines; 0 if it is not available."""
        try:
            (found,) = self.discovery.collect(NOW)
        except NotAvailable as error:
            assert "set LEGATO_ENGINES to the URL of an engine" in str(error)
            self.is_coming = error.is_coming
            return 0
        assert isinstance(found, Measurement) and (found.metric, found.unit) == ("legato.agent.engines", "{engine}")
        return found.value


@pytest.fixture(autouse=True)
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The ports that discovery probes: none, until a test adds some."""
    known: set[int] = set()
    monkeypatch.setattr(discovery, "PORTS", known)
    yield known


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_is_found_where_it_listens(ports: set[int], kind: str) -> None:
    """By its port, at any path; its id is host and port, its processes are known, and its metrics are read."""
    with Site(site(kind)) as engine:
        ports.add(engine.port)
        world = World()
        assert [world.count(), world.count()] == [1, 1]
        (metrics,) = world.added
        assert (metrics.engine_id, metrics.name, metrics.every_s) == (engine.engine_id, f"page {engine.engine_id}", 1.0)
        found = list(metrics.collect(NOW))
        assert kind_of(found) == kind and metrics.engine is ENGINES[kind]
        assert all(dict(each.attributes)["legato.engine.id"].split("/")[0] == engine.engine_id for each in found)
        assert os.getpid() in world.engine_registry.pids()[engine.engine_id]


class Named(Proc):
    """A /proc where the processes started with this id."""

    def variable(self, pid: int, name: str) -> str:
        return "prod" if (pid, name) == (os.getpid(), "LEGATO_ENGINE_ID") else ""


def test_an_engine_has_the_id_of_its_process(ports: set[int]) -> None:
    """Its plugin sends steps under this id, and the default one is the same on each node."""
    with Site(site("vllm")) as engine:
        ports.add(engine.port)
        world = World(proc=Named(pathlib.Path("/proc")))
        assert world.count() == 1 and [metrics.engine_id for metrics in world.added] == ["prod"]
        assert os.getpid() in world.engine_registry.pids()["prod"]


def test_only_default_ports_are_probed() -> None:
    """A server at another port is not probed, and none is without /proc."""
    assert {3000, 8000, 8002, 8080, 23333, 30000} <= KNOWN
    with Site(site("vllm")) as engine:
        assert World().count() == 0 and World(proc=None).count() == 0 and engine.requested == []


def test_configured_engines_need_no_probe(ports: set[int]) -> None:
    """They have the given id, also before they are up; at a default port they are not found a second time."""
    with Site(site("vllm")) as engine:
        ports.add(engine.port)
        later = f"http://localhost:{free_port()}/replica"
        world = World(("prod", engine.url.replace("127.0.0.1", "localhost")), ("", later))
        assert [world.count(), world.count()] == [2, 2]
        assert [metrics.engine_id for metrics in world.added] == ["prod", engine_id_from_url(later)] and engine.requested == []
        assert kind_of(list(world.added[0].collect(NOW))) == "vllm" and os.getpid() in world.engine_registry.pids()["prod"]
        with pytest.raises(ConnectionRefusedError):
            list(world.added[1].collect(NOW))


# A local address other than 127.0.0.1: equivalent to an interface's, and available on every Linux.
OWN = "127.0.0.2"


@pytest.mark.parametrize(("listens", "host"), [("0.0.0.0", OWN), ("0.0.0.0", "gpu7"), (OWN, OWN), (OWN, "gpu7"), ("127.0.0.1", "gpu7")])
def test_an_engine_is_one_under_any_name_of_its_host(ports: set[int], monkeypatch: pytest.MonkeyPatch, listens: str, host: str) -> None:
    """Configured by the host's address or name, it is not found a second time at its port, and its processes are known."""
    lookups = answers_for(monkeypatch, gpu7=(OWN, "127.0.0.1"))
    with Site(site("vllm"), listener_at(listens)) as engine:
        ports.add(engine.port)
        world = World(("prod", f"http://{host}:{engine.port}"))
        assert [world.count(), world.count()] == [1, 1] and engine.requested == []
        assert [metrics.engine_id for metrics in world.added] == ["prod"] and os.getpid() in world.engine_registry.pids()["prod"]
        assert lookups.count("gpu7") == (host == "gpu7")


@pytest.mark.parametrize(("listens", "host"), [("0.0.0.0", OWN), ("0.0.0.0", "gpu7"), (OWN, OWN), ("127.0.0.1", "localhost")])
def test_excluded_servers_are_not_probed(ports: set[int], monkeypatch: pytest.MonkeyPatch, listens: str, host: str) -> None:
    """Under any name of their host."""
    answers_for(monkeypatch, gpu7=(OWN,))
    with Site(site("tensorrt_llm"), listener_at(listens)) as engine:
        ports.add(engine.port)
        world = World(taken=f"http://{host}:{engine.port}")
        assert [world.count(), world.count()] == [0, 0] and engine.requested == []


def test_a_server_with_polled_iterations_is_read_at_one_path(ports: set[int]) -> None:
    """Also while it does not serve its metrics: a GET of /metrics would take iterations from their collector."""
    with Site({}) as engine:
        ports.add(engine.port)
        world = World(("prod", engine.url), taken=engine.url)
        assert world.count() == 1
        with pytest.raises(FetchError):
            list(world.added[0].collect(NOW))
        assert engine.requested == [PROMETHEUS]


@pytest.mark.parametrize("host", ["10.1.2.3", "elsewhere", "unknown", "127.0.0.3"])
def test_an_engine_of_another_address_hides_none_here(ports: set[int], monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """At the same port of another host, or at another address than that of this socket."""
    answers_for(monkeypatch, elsewhere=("10.1.2.3",))
    with Site(site("vllm")) as engine:
        ports.add(engine.port)
        world = World(("prod", f"http://{host}:{engine.port}"))
        assert world.count() == 2 and [metrics.engine_id for metrics in world.added] == ["prod", engine.engine_id]


@pytest.mark.parametrize(("host", "engine_id"), [(OWN, OWN), ("0.0.0.0", "127.0.0.1"), ("::1", "127.0.0.1"), ("::", "127.0.0.1")])
def test_an_engine_is_found_at_its_own_address(ports: set[int], host: str, engine_id: str) -> None:
    """An engine that listens at one address only is probed there, and has the same id as from its plugin."""
    with Site(site("vllm"), listener_at(host)) as engine:
        ports.add(engine.port)
        world = World()
        assert [world.count(), world.count()] == [1, 1] and engine.requested == [PROMETHEUS, METRICS]
        (metrics,) = world.added
        assert metrics.engine_id == f"{engine_id}:{engine.port}" and kind_of(list(metrics.collect(NOW))) == "vllm"
        assert os.getpid() in world.engine_registry.pids()[metrics.engine_id]


def test_two_engines(ports: set[int]) -> None:
    """Each has separate metrics and a separate id."""
    with Site(site("vllm")) as one, Site(site("sglang")) as other:
        ports |= {one.port, other.port}
        world = World()
        assert world.count() == 2
        assert {metrics.engine_id: kind_of(list(metrics.collect(NOW))) for metrics in world.added} == {
            one.engine_id: "vllm",
            other.engine_id: "sglang",
        }


def test_a_server_other_than_an_engine_is_left_alone(ports: set[int]) -> None:
    """It is probed once per path, and again after five minutes or when another socket listens there."""
    with Site(GRAFANA) as service:
        ports.add(service.port)
        world = World()
        assert [world.count() for _ in range(5)] == [0] * 5 and service.requested == [PROMETHEUS, METRICS]
        world.now_s += 299
        assert world.count() == 0 and len(service.requested) == 2
        world.now_s += 2
        assert world.count() == 0 and len(service.requested) == 4
        assert world.count() == 0 and len(service.requested) == 4
    assert world.count() == 0
    with Site(site("vllm"), bound(service.port)) as engine:
        assert world.count() == 1 and engine.requested == [PROMETHEUS, METRICS]


@pytest.mark.parametrize("answered", [True, False])
def test_an_engine_that_is_loading_is_found_when_it_is_ready(ports: set[int], monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    """In the next round: llama.cpp answers 503 while it loads its model, another engine not at all."""
    with Site(site("vllm")) as engine:
        ports.add(engine.port)
        world = World()
        engine.status = "503 Service Unavailable"
        if answered:
            assert world.count() == 0
        else:
            with monkeypatch.context() as patch:
                patch.setattr(discovery, "_PROBE_TIMEOUT_S", 1e-9)
                assert world.count() == 0
        assert world.is_coming
        engine.status = ""
        assert world.count() == 1


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error", "302 Found", "rubbish"])
def test_a_service_with_odd_responses_is_not_an_engine(ports: set[int], status: str) -> None:
    """Nor one without any response; discovery continues with the next port."""
    with Site(site("vllm")) as odd, Site(site("sglang")) as engine:
        odd.status = status
        ports |= {odd.port, engine.port}
        world = World()
        assert world.count() == 1 and [metrics.engine_id for metrics in world.added] == [engine.engine_id]


def test_an_engine_that_starts_later_is_found_then(ports: set[int]) -> None:
    """A port that is bound but not listening is not probed."""
    listener = bound()
    ports.add(listener.getsockname()[1])
    world = World()
    assert world.count() == 0
    with Site(site("llamacpp"), listener) as engine:
        assert world.count() == 1 and kind_of(list(world.added[0].collect(NOW))) == "llamacpp"
        assert world.added[0].engine_id == engine.engine_id
