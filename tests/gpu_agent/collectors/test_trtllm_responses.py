"""Invalid responses of TensorRT-LLM's two JSON endpoints: both collectors describe them, emit nothing, and read the next one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.engine_sources import PolledEngine, polled, rows_body
from helpers.platform.examples import examples
from helpers.platform.trtllm import (
    RESPONSES,
    IterationsEngine,
    RequestsEngine,
    iteration_counts,
    iteration_row,
    request_counts,
    request_row,
    request_with_times,
)
from legato_gpu_agent.collectors.trtllm_iterations import BadIterations
from legato_gpu_agent.collectors.trtllm_requests import BadPerfMetrics

ERRORS = (BadIterations, BadPerfMetrics)


def invalid(what: str, options: str, truncated: bytes, not_a_number: bytes) -> dict[str, tuple[bytes | int, str]]:
    """Return invalid responses with the expected text of the error; ``what`` names the list, ``options`` those of the server."""
    no_list = f"is not a list of {what}"
    return {
        "empty": (b"", no_list),
        "another engine's response": (
            (RESPONSES / "vllm_0.32.txt").read_bytes(),
            f"{no_list} .*: expected TensorRT-LLM's JSON, .*{options}",
        ),
        "an object": (b"{}", rf"{no_list} \(Expected `array`, got `object`\)"),
        "truncated": (truncated, no_list),
        "not a number": (not_a_number, no_list),
        "deep": (b"[" * 60_000, no_list),
        "not text": (b'["\xff\xfe', no_list),
    }


ITERATIONS: dict[str, tuple[bytes | int, str]] = {
    **invalid("iterations", "enable_iter_perf", rows_body(iteration_row(7))[:-10], b'[{"iter": NaN}]'),
    "50 MB": (b"[" + b" " * 50_000_000 + b"]", "/metrics is longer than 8 MiB"),
    "another path": (404, "/metrics answers 404"),
    "a failure": (500, "/metrics answers 500"),
}
REQUESTS: dict[str, tuple[bytes | int, str]] = {
    **invalid(
        "finished requests",
        "perf_metrics_max_requests.*LEGATO_ITERATIONS",
        rows_body(request_row(7))[:-10],
        rows_body(request_row(7), request_with_times(8, last_token_time=math.nan)),
    ),
    "50 MB": (
        b"[" + b" " * 50_000_000 + b"]",
        "/perf_metrics is longer than 8 MiB: expected a list of finished requests; a long one needs a smaller LEGATO_SAMPLE_MS",
    ),
    "a failure": (500, "/perf_metrics answers 500"),
}


@pytest.fixture(scope="module")
def iterations() -> Iterator[IterationsEngine]:
    """A server of iterations that was polled once."""
    with polled(IterationsEngine) as engine:
        engine.poll()
        yield engine


@pytest.fixture(scope="module")
def requests() -> Iterator[RequestsEngine]:
    """A server of finished requests that was polled once."""
    with polled(RequestsEngine) as engine:
        engine.poll()
        yield engine


def is_described(engine: PolledEngine, error: type[Exception], body: bytes | int, why: str) -> None:
    """Check that the error has the URL and the reason, and that nothing is emitted."""
    engine.emitted.clear()
    with pytest.raises(error, match=rf"^http://127.0.0.1:\d+.*{why}"):
        engine.poll_body(body)
    assert not engine.emitted and issubclass(error, ValueError)


@pytest.mark.parametrize(("body", "why"), ITERATIONS.values(), ids=ITERATIONS.keys())
def test_an_invalid_list_of_iterations_is_described(body: bytes | int, why: str) -> None:
    """With the URL, and nothing is emitted; the next response is read."""
    with polled(IterationsEngine) as engine:
        engine.poll()
        is_described(engine, BadIterations, body, why)
        assert iteration_counts(engine.poll(iteration_row(7))) == {"taken": 1}


@pytest.mark.parametrize(("body", "why"), REQUESTS.values(), ids=REQUESTS.keys())
def test_an_invalid_list_of_requests_is_described(body: bytes | int, why: str) -> None:
    """With the URL, and nothing is emitted; the next response is read."""
    with polled(RequestsEngine) as engine:
        engine.poll()
        is_described(engine, BadPerfMetrics, body, why)
        assert request_counts(engine.poll(request_row(7))) == {"taken": 1}


@pytest.mark.parametrize("kind", [IterationsEngine, RequestsEngine])
def test_a_stopped_server_is_an_error(kind: type[IterationsEngine] | type[RequestsEngine]) -> None:
    """The error of its connection."""
    with polled(kind) as engine:
        pass
    with pytest.raises(ConnectionError):
        engine.poll()


@examples(30)
@given(body=st.one_of(st.binary(max_size=60), st.text(alphabet='[]{}",:0123456789.eE-', max_size=40).map(str.encode)))
def test_random_responses_are_rejected(iterations: IterationsEngine, requests: RequestsEngine, body: bytes) -> None:
    """Unless they happen to be lists."""
    for engine, counts in ((iterations, iteration_counts), (requests, request_counts)):
        with contextlib.suppress(*ERRORS):
            counts(engine.poll_body(body))
            assert body.strip().startswith(b"[")
