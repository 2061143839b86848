"""Engines are found and their pages read: over real HTTP, on ports that this process listens at, looked for in the real /proc."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from helpers.builders.scripted import Server, answer, asked, bound
from helpers.servers.answering import answering_get
from helpers.servers.ports import free_port
from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.collectors import Absent, Collector, discovery, engine_metrics
from legato_gpu_agent.collectors.discovery import EngineFinder
from legato_gpu_agent.collectors.engine_metrics import EnginePage
from legato_gpu_agent.collectors.engine_registry import Neighbours
from legato_gpu_agent.collectors.exposition import BadPage
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.collectors.runner import Basket, Watch
from legato_gpu_agent.engines.registry import ENGINES
from legato_gpu_agent.plugin.identity import engine_id_of

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
LIVE = Proc(pathlib.Path("/proc"))
PAGES = pathlib.Path(__file__).parents[1] / "data" / "pages"
METRICS, PROMETHEUS = "/metrics", "/prometheus/metrics"
KINDS = {
    "vllm": {METRICS: "vllm_0.32.txt"},
    "sglang": {METRICS: "sglang_0.5.txt"},
    "tensorrt_llm": {METRICS: "tensorrt_llm_iterations.json", PROMETHEUS: "tensorrt_llm_prometheus.txt"},
    "llamacpp": {METRICS: "llamacpp.txt"},
    "triton": {METRICS: "triton_tensorrtllm.txt"},
}
KNOWN = discovery.PORTS
GRAFANA = {METRICS: b"# TYPE grafana_up gauge\ngrafana_up 1\n"}


def site(kind: str) -> dict[str, bytes]:
    """All that an engine of this kind answers, by path."""
    return {path: (PAGES / name).read_bytes() for path, name in KINDS[kind].items()}


def door_at(host: str) -> socket.socket:
    """Like `bound`, at this address of this host's."""
    try:
        door = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        door.bind((host, 0))
    except OSError as error:
        pytest.skip(f"this host has no {host}: {error}")
    return door


def answers_for(monkeypatch: pytest.MonkeyPatch, **addresses: tuple[str, ...]) -> list[str]:
    """These names stand for these addresses, and no other name for any; what was looked up."""
    lookups: list[str] = []
    real = socket.getaddrinfo

    def answered(host: str, port: int | None, family: int = 0, type: int = 0) -> object:
        lookups.append(host)
        if host in addresses:
            return [(2, 1, 6, "", (address, 0)) for address in addresses[host]]
        return real(host, port, family, type, flags=socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", answered)
    return lookups


class Site:
    """Serves pages by path, and 404 beside them; they may be replaced while it runs."""

    def __init__(self, pages: Mapping[str, bytes], door: socket.socket | None = None) -> None:
        self.pages, self.asked, self.status = dict(pages), list[str](), ""
        door = door or bound()
        self.port: int = door.getsockname()[1]
        self.url, self.engine_id = f"http://127.0.0.1:{self.port}", f"127.0.0.1:{self.port}"
        self._server = Server(self._talk, door=door)

    def __enter__(self) -> Site:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def _talk(self, connection: socket.socket) -> None:
        path = asked(connection).split(b" ", 2)[1].decode()
        self.asked.append(path)
        status = self.status or ("200 OK" if path in self.pages else "404 Not Found")
        connection.sendall(answer(self.pages.get(path, b"no"), status, "Connection: close"))


class World:
    """A finder with what it found."""

    def __init__(self, *named: tuple[str, str], proc: Proc | None = LIVE, taken: str = "") -> None:
        self.now_s, self.pages = 1_000.0, list[EnginePage]()
        self.neighbours = Neighbours(LIVE)
        self.finder = EngineFinder(named, proc, self.neighbours, self._add, 1.0, lambda: self.now_s, taken=[taken] if taken else [])

    def _add(self, page: Collector) -> None:
        assert isinstance(page, EnginePage)
        self.pages.append(page)

    def look(self) -> float:
        """How many engines it says there are; 0 when it says that there is none."""
        try:
            (found,) = self.finder.collect(NOW)
        except Absent as error:
            assert "set LEGATO_ENGINES to where an engine serves /metrics" in str(error)
            return 0
        assert isinstance(found, Reading) and (found.metric, found.unit) == ("legato.agent.engines", "{engine}")
        return found.value


@pytest.fixture(autouse=True)
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Where engines are looked for: nowhere, until a test says where."""
    known: set[int] = set()
    monkeypatch.setattr(discovery, "PORTS", known)
    yield known


def kind_of(found: list[Found]) -> str:
    """What the first reading says, of an engine that has told more than that it is up."""
    up = found[0]
    assert isinstance(up, Reading) and (up.metric, up.value) == ("legato.engine.up", 1.0) and len(found) > 5
    return dict(up.attributes)["legato.engine.kind"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_is_found_where_it_listens(ports: set[int], kind: str) -> None:
    """By its port, wherever it has its page; it is called by host and port, its processes are known, and its page tells."""
    with Site(site(kind)) as engine:
        ports.add(engine.port)
        world = World()
        assert [world.look(), world.look()] == [1, 1]
        (page,) = world.pages
        assert (page.engine_id, page.name, page.every_s) == (engine.engine_id, f"page {engine.engine_id}", 1.0)
        found = list(page.collect(NOW))
        assert kind_of(found) == kind and page.engine is ENGINES[kind]
        assert all(dict(each.attributes)["legato.engine.id"].split("/")[0] == engine.engine_id for each in found)
        assert os.getpid() in world.neighbours.pids()[engine.engine_id]


def test_the_known_ports_are_looked_at_and_no_others() -> None:
    """Those at which engines listen unless told otherwise; a server at another is never asked, nor is any where nobody is to be sought."""
    assert {3000, 8000, 8002, 8080, 23333, 30000} <= KNOWN
    with Site(site("vllm")) as engine:
        assert World().look() == 0 and World(proc=None).look() == 0 and engine.asked == []


def test_named_engines_are_taken_as_they_are(ports: set[int]) -> None:
    """With the id that they were given, also before they are up, and at a port that is looked at too they are one engine."""
    with Site(site("vllm")) as engine:
        ports.add(engine.port)
        later = f"http://localhost:{free_port()}/replica"
        world = World(("prod", engine.url.replace("127.0.0.1", "localhost")), ("", later))
        assert [world.look(), world.look()] == [2, 2]
        assert [page.engine_id for page in world.pages] == ["prod", engine_id_of(later)] and engine.asked == []
        assert kind_of(list(world.pages[0].collect(NOW))) == "vllm" and os.getpid() in world.neighbours.pids()["prod"]
        with pytest.raises(ConnectionRefusedError):
            list(world.pages[1].collect(NOW))


# An address that is this host's own and not the usual one of loopback: as good as an interface's, and every Linux has it.
OWN = "127.0.0.2"


@pytest.mark.parametrize(("listens", "host"), [("0.0.0.0", OWN), ("0.0.0.0", "gpu7"), (OWN, OWN), (OWN, "gpu7"), ("127.0.0.1", "gpu7")])
def test_an_engine_is_one_by_any_name_of_its_host(ports: set[int], monkeypatch: pytest.MonkeyPatch, listens: str, host: str) -> None:
    """Named by the host's own address, or by its name, it is not found once more where it listens, and its processes are its."""
    lookups = answers_for(monkeypatch, gpu7=(OWN, "127.0.0.1"))
    with Site(site("vllm"), door_at(listens)) as engine:
        ports.add(engine.port)
        world = World(("prod", f"http://{host}:{engine.port}"))
        assert [world.look(), world.look()] == [1, 1] and engine.asked == []
        assert [page.engine_id for page in world.pages] == ["prod"] and os.getpid() in world.neighbours.pids()["prod"]
        assert lookups.count("gpu7") == (host == "gpu7")


@pytest.mark.parametrize(("listens", "host"), [("0.0.0.0", OWN), ("0.0.0.0", "gpu7"), (OWN, OWN), ("127.0.0.1", "localhost")])
def test_what_is_taken_is_not_asked(ports: set[int], monkeypatch: pytest.MonkeyPatch, listens: str, host: str) -> None:
    """By whatever name of its host somebody reads it already."""
    answers_for(monkeypatch, gpu7=(OWN,))
    with Site(site("tensorrt_llm"), door_at(listens)) as engine:
        ports.add(engine.port)
        world = World(taken=f"http://{host}:{engine.port}")
        assert [world.look(), world.look()] == [0, 0] and engine.asked == []


@pytest.mark.parametrize("host", ["10.1.2.3", "elsewhere", "nobody", "127.0.0.3"])
def test_an_engine_that_is_named_elsewhere_hides_none_here(ports: set[int], monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """At the same port of another host, or at another address than this one's socket has."""
    answers_for(monkeypatch, elsewhere=("10.1.2.3",))
    with Site(site("vllm")) as engine:
        ports.add(engine.port)
        world = World(("prod", f"http://{host}:{engine.port}"))
        assert world.look() == 2 and [page.engine_id for page in world.pages] == ["prod", engine.engine_id]


@pytest.mark.parametrize(("host", "engine_id"), [(OWN, OWN), ("0.0.0.0", "127.0.0.1"), ("::1", "127.0.0.1"), ("::", "127.0.0.1")])
def test_an_engine_is_found_at_its_own_address(ports: set[int], host: str, engine_id: str) -> None:
    """Where it listens at one address alone it is asked there, and is called as its plugin calls it."""
    with Site(site("vllm"), door_at(host)) as engine:
        ports.add(engine.port)
        world = World()
        assert [world.look(), world.look()] == [1, 1] and engine.asked == [METRICS]
        (page,) = world.pages
        assert page.engine_id == f"{engine_id}:{engine.port}" and kind_of(list(page.collect(NOW))) == "vllm"
        assert os.getpid() in world.neighbours.pids()[page.engine_id]


def test_two_engines(ports: set[int]) -> None:
    """Each has its page and its id."""
    with Site(site("vllm")) as one, Site(site("sglang")) as other:
        ports |= {one.port, other.port}
        world = World()
        assert world.look() == 2
        assert {page.engine_id: kind_of(list(page.collect(NOW))) for page in world.pages} == {
            one.engine_id: "vllm",
            other.engine_id: "sglang",
        }


def test_what_is_no_engine_is_left_alone(ports: set[int]) -> None:
    """It is asked once for each path; again after five minutes, or when another socket listens there."""
    with Site(GRAFANA) as service:
        ports.add(service.port)
        world = World()
        assert [world.look() for _ in range(5)] == [0] * 5 and service.asked == [METRICS, PROMETHEUS]
        world.now_s += 299
        assert world.look() == 0 and len(service.asked) == 2
        world.now_s += 2
        assert world.look() == 0 and len(service.asked) == 4
        assert world.look() == 0 and len(service.asked) == 4
    assert world.look() == 0
    with Site(site("vllm"), bound(service.port)) as engine:
        assert world.look() == 1 and engine.asked == [METRICS]


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error", "302 Found", "rubbish"])
def test_a_service_that_answers_oddly_is_no_engine(ports: set[int], status: str) -> None:
    """Nor one that has no page at all, and the finder goes on to the next."""
    with Site(site("vllm")) as odd, Site(site("sglang")) as engine:
        odd.status = status
        ports |= {odd.port, engine.port}
        world = World()
        assert world.look() == 1 and [page.engine_id for page in world.pages] == [engine.engine_id]


def test_an_engine_that_comes_up_later_is_found_then(ports: set[int]) -> None:
    """A port that is taken and not listened at yet is asked nothing."""
    door = bound()
    ports.add(door.getsockname()[1])
    world = World()
    assert world.look() == 0
    with Site(site("llamacpp"), door) as engine:
        assert world.look() == 1 and kind_of(list(world.pages[0].collect(NOW))) == "llamacpp"
        assert world.pages[0].engine_id == engine.engine_id


@pytest.mark.parametrize(
    ("first", "then"),
    [("vllm", "sglang"), ("vllm", "tensorrt_llm"), ("tensorrt_llm", "vllm"), ("sglang", "triton"), ("triton", "llamacpp")],
)
def test_another_engine_at_the_same_port(first: str, then: str) -> None:
    """Is known for what it is after one round that fails, wherever it has its page."""
    with Site(site(first)) as engine:
        page = EnginePage(engine.url)
        assert [kind_of(list(page.collect(NOW + SECOND * number))) for number in range(2)] == [first] * 2
        engine.pages = site(then)
        with pytest.raises((BadPage, FetchError)):
            list(page.collect(NOW + 2 * SECOND))
        assert [kind_of(list(page.collect(NOW + SECOND * number))) for number in (3, 4)] == [then] * 2


def counters(found: list[Found]) -> dict[object, int]:
    """Since when each counts."""
    return {(each.metric, each.attributes): each.since_ns for each in found if isinstance(each, Reading) and each.since_ns}


def test_an_engine_that_fails_once_goes_on_counting() -> None:
    """An error, or a moment without a connection, is told; what comes then is of the same engine, and counts since it was first seen."""
    with Site(site("vllm")) as engine:
        page = EnginePage(engine.url)
        before = counters(list(page.collect(NOW)))
        assert before and set(before.values()) == {NOW}
        engine.status = "503 Service Unavailable"
        with pytest.raises(FetchError, match="/metrics answers 503"):
            list(page.collect(NOW + SECOND))
        engine.status = ""
        assert counters(list(page.collect(NOW + 2 * SECOND))) == before


def test_an_engine_that_goes_is_down_until_it_is_back() -> None:
    """Its watch says so, with the error; it is back with the first page that comes."""
    basket, metrics = Basket(), Metrics()
    with Site(site("vllm")) as engine:
        watch = Watch(EnginePage(engine.url), basket, metrics)
        assert watch.round().state == "up"
    status = watch.round()
    assert status.state == "down" and status.why.startswith("ConnectionRefusedError")
    with Site(site("vllm"), bound(engine.port)):
        assert watch.round().state == "up"


def test_a_page_of_nobody_is_told_with_what_was_found() -> None:
    """Both paths, and what each answered; once an engine is there, it is read. A kind that was named is not guessed."""
    with Site(GRAFANA) as service:
        page = EnginePage(service.url)
        with pytest.raises(BadPage, match=rf"{service.url}: /metrics is no engine's.*; /prometheus/metrics answers 404 Not Found"):
            list(page.collect(NOW))
        service.pages = site("vllm")
        assert kind_of(list(page.collect(NOW))) == "vllm"
        named = EnginePage(service.url, "prod", kind="sglang")
        for _ in range(2):
            with pytest.raises(BadPage, match="SGLang"):
                list(named.collect(NOW))
        service.pages = site("sglang")
        assert kind_of(list(named.collect(NOW))) == "sglang"
        service.pages, service.status = site("tensorrt_llm"), "503 Service Unavailable"
        service.asked.clear()
        named = EnginePage(service.url, kind="tensorrt_llm")
        with pytest.raises(FetchError):
            list(named.collect(NOW))
        service.status = ""
        assert kind_of(list(named.collect(NOW))) == "tensorrt_llm" and service.asked == [PROMETHEUS] * 2


def test_a_path_that_answers_late_hides_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM's JSON keeps who asks waiting for seconds while nothing runs: its page is at the other path, and read there."""
    monkeypatch.setattr(engine_metrics, "Fetcher", lambda url, timeout_s: Fetcher(url, timeout_s / 10))
    over, asked_for = threading.Event(), list[str]()

    def answer(path: str) -> bytes:
        asked_for.append(path)
        if path == METRICS:
            over.wait(20)
        return site("tensorrt_llm").get(path, b"")

    with answering_get(answer) as url:
        page = EnginePage(url)
        try:
            assert [kind_of(list(page.collect(NOW + at * SECOND))) for at in range(2)] == ["tensorrt_llm"] * 2
            assert asked_for == [METRICS, PROMETHEUS, PROMETHEUS]
        finally:
            over.set()
            page._fetcher.close()


def test_a_page_that_is_cut_off_is_no_page() -> None:
    """Nothing is told of it, and the next whole one is read."""
    with Site(site("vllm")) as engine:
        page = EnginePage(engine.url)
        list(page.collect(NOW))
        whole = engine.pages[METRICS]
        engine.pages[METRICS] = whole[: len(whole) // 2].rstrip(b"\n")
        told: list[Found] = []
        with pytest.raises(BadPage, match="cut off"), contextlib.suppress(StopIteration):
            told.extend(page.collect(NOW + SECOND))
        engine.pages[METRICS] = whole
        assert told == [] and kind_of(list(page.collect(NOW + 2 * SECOND))) == "vllm"


@pytest.mark.parametrize(
    ("url", "engine_id"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://localhost:8000/base", "127.0.0.1:8000"),
        ("http://0.0.0.0:8000", "127.0.0.1:8000"),
        ("http://[::1]:8000", "127.0.0.1:8000"),
        ("http://[::]:8000", "127.0.0.1:8000"),
        ("http://[fd00::5]:8000", "fd00::5:8000"),
        ("http://10.0.0.5:8000", "10.0.0.5:8000"),
        ("http://GPU7:30000", "gpu7:30000"),
        ("http://gpu7", "gpu7:80"),
        ("https://gpu7", "gpu7:443"),
    ],
)
def test_an_engine_is_called_by_where_it_is(url: str, engine_id: str) -> None:
    """By host and port, as its plugin calls it, unless it is told."""
    assert engine_id_of(url) == EnginePage(url).engine_id == engine_id and EnginePage(url, "prod").engine_id == "prod"
