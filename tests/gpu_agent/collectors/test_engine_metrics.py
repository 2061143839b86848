"""The scrape of an engine's metrics over real HTTP: paths, identification, failures and restarts."""

from __future__ import annotations

import contextlib
import pathlib
import threading

import pytest

from helpers.builders.scripted import bound
from helpers.platform.engine_site import GRAFANA, METRICS, PROMETHEUS, Site, kind_of, site
from helpers.servers.http_server import serve_get
from helpers.servers.waiting import until
from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_runner import CollectorRunner
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.collectors import engine_metrics
from legato_gpu_agent.collectors.engine_metrics import EngineMetrics
from legato_gpu_agent.collectors.exposition import BadExposition
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.identity import engine_id_from_url

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
LIVE = Proc(pathlib.Path("/proc"))


@pytest.mark.parametrize(
    ("first", "then"),
    [("vllm", "sglang"), ("vllm", "tensorrt_llm"), ("tensorrt_llm", "vllm"), ("sglang", "triton"), ("triton", "llamacpp")],
)
def test_another_engine_at_the_same_port(first: str, then: str) -> None:
    """It is recognised after one failed round, at any path."""
    with Site(site(first)) as engine:
        metrics = EngineMetrics(engine.url)
        assert [kind_of(list(metrics.collect(NOW + SECOND * number))) for number in range(2)] == [first] * 2
        engine.texts = site(then)
        with pytest.raises((BadExposition, FetchError)):
            list(metrics.collect(NOW + 2 * SECOND))
        assert [kind_of(list(metrics.collect(NOW + SECOND * number))) for number in (3, 4)] == [then] * 2


def counters(found: list[Measured]) -> dict[object, int]:
    """Return the start of each counter."""
    return {(each.metric, each.attributes): each.start_ns for each in found if isinstance(each, Measurement) and each.start_ns}


def test_an_engine_that_fails_once_keeps_its_counters() -> None:
    """An error or an interrupted connection is reported; later values belong to the same engine and keep their start."""
    with Site(site("vllm")) as engine:
        metrics = EngineMetrics(engine.url)
        before = counters(list(metrics.collect(NOW)))
        assert before and set(before.values()) == {NOW}
        engine.status = "503 Service Unavailable"
        with pytest.raises(FetchError, match="/metrics answers 503"):
            list(metrics.collect(NOW + SECOND))
        engine.status = ""
        assert counters(list(metrics.collect(NOW + 2 * SECOND))) == before


def test_a_stopped_engine_is_down_until_it_is_back() -> None:
    """Its runner reports the error; it is up again with the next successful scrape."""
    buffer, metrics = Buffer(), SelfMetrics()
    with Site(site("vllm")) as engine:
        runner = CollectorRunner(EngineMetrics(engine.url), buffer, metrics)
        assert runner.run_once().state == "up"
    status = runner.run_once()
    assert status.state == "down" and status.why.startswith("ConnectionRefusedError")
    with Site(site("vllm"), bound(engine.port)):
        assert runner.run_once().state == "up"


def test_an_unknown_text_is_reported_with_both_paths() -> None:
    """With the response of each path; once an engine serves there, it is read. A given kind is not detected."""
    with Site(GRAFANA) as service:
        metrics = EngineMetrics(service.url)
        why = rf"{service.url}: /prometheus/metrics answers 404 Not Found; /metrics has no family of a known engine"
        with pytest.raises(BadExposition, match=why):
            list(metrics.collect(NOW))
        service.texts = site("vllm")
        assert kind_of(list(metrics.collect(NOW))) == "vllm"
        named = EngineMetrics(service.url, "prod", kind="sglang")
        for _ in range(2):
            with pytest.raises(BadExposition, match="SGLang"):
                list(named.collect(NOW))
        service.texts = site("sglang")
        assert kind_of(list(named.collect(NOW))) == "sglang"
        service.texts, service.status = site("tensorrt_llm"), "503 Service Unavailable"
        service.requested.clear()
        named = EngineMetrics(service.url, kind="tensorrt_llm")
        with pytest.raises(FetchError):
            list(named.collect(NOW))
        service.status = ""
        assert kind_of(list(named.collect(NOW))) == "tensorrt_llm" and service.requested == [PROMETHEUS] * 2


class _SoonAtFirst(Fetcher):
    """Waits for the first path as long as a test can, and for others longer than a busy machine takes."""

    def get(self, path: str) -> bytes:
        self._timeout_s = 0.2 if path == PROMETHEUS else 10.0
        return super().get(path)


def test_the_iterations_of_tensorrt_llm_are_not_taken() -> None:
    """A GET of /metrics empties the list that another client polls: it is not requested of an engine that has its metrics elsewhere."""
    with Site(site("tensorrt_llm")) as engine:
        metrics = EngineMetrics(engine.url)
        assert kind_of(list(metrics.collect(NOW))) == kind_of(list(metrics.collect(NOW + SECOND))) == "tensorrt_llm"
        assert set(engine.requested) == {PROMETHEUS}


def test_a_slow_path_hides_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer at the first path: the metrics are at the other one, and are read there."""
    monkeypatch.setattr(engine_metrics, "Fetcher", _SoonAtFirst)
    over, resolved_names = threading.Event(), list[str]()

    def answer(path: str) -> bytes:
        resolved_names.append(path)
        if path == PROMETHEUS:
            over.wait(20)
        return site("vllm").get(path, b"")

    with serve_get(answer) as url:
        metrics = EngineMetrics(url)
        try:
            assert [kind_of(list(metrics.collect(NOW + at * SECOND))) for at in range(2)] == ["vllm"] * 2
            # A busy server may see the first request after the second.
            until(lambda: len(resolved_names) >= 3)
            assert sorted(resolved_names) == [METRICS, METRICS, PROMETHEUS]
        finally:
            over.set()
            metrics._fetcher.close()


def test_a_truncated_text_is_rejected() -> None:
    """It yields no measurement, and the next complete text is read."""
    with Site(site("vllm")) as engine:
        metrics = EngineMetrics(engine.url)
        list(metrics.collect(NOW))
        whole = engine.texts[METRICS]
        engine.texts[METRICS] = whole[: len(whole) // 2].rstrip(b"\n")
        found: list[Measured] = []
        with pytest.raises(BadExposition, match="cut off"), contextlib.suppress(StopIteration):
            found.extend(metrics.collect(NOW + SECOND))
        engine.texts[METRICS] = whole
        assert found == [] and kind_of(list(metrics.collect(NOW + 2 * SECOND))) == "vllm"


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
def test_an_engine_has_the_id_of_its_address(url: str, engine_id: str) -> None:
    """Host and port, as its plugin derives it, unless an id is given."""
    assert engine_id_from_url(url) == EngineMetrics(url).engine_id == engine_id and EngineMetrics(url, "prod").engine_id == "prod"
