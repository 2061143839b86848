"""The flush of the application's tracer provider: its time limit, and the threads that it takes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.servers.waiting import until
from legato import _application


class Provider:
    """A provider that ignores the time-out of a flush, as OpenTelemetry's processors do."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.calls = 0
        self.is_blocked = False

    def force_flush(self, timeout_millis: int) -> None:
        """Wait."""
        self.calls += 1
        self.is_blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.release.wait(120)


@pytest.fixture
def provider(spans: Callable[[], list[ReadableSpan]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """The application's provider, which was given a stream."""
    with legato.stream(model="m") as recorder:
        recorder.record(1)
    assert len(spans()) == 1
    slow = Provider()
    with monkeypatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", lambda: slow)
        yield slow
        slow.release.set()
        assert legato.flush(120)


def test_a_flush_ends_in_time(provider: Provider) -> None:
    """It returns False while the provider hangs, whether or not another flush waits for it, and True afterwards."""
    assert not legato.flush(0.3)
    # A busy machine may not have begun the provider's flush in that time.
    until(lambda: provider.calls)
    assert not legato.flush(0.1) and provider.calls == 1 and not provider.release.is_set()
    assert provider.is_blocked
    provider.release.set()
    assert legato.flush(120) and provider.calls >= 2


def test_no_thread_can_be_started(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the program: the provider is left to its exit handler."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(_application, "without_signals", refuse)
        assert not legato.flush(60)
    assert provider.calls == 0
