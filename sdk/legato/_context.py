"""The client, the conversation and the server's request that a stream belongs to, as context variables, which asyncio tasks inherit.

Threads do not inherit them; `carry` hands them to a thread of a pool, with OpenTelemetry's current span.

The client's name never leaves the process. Only its keyed hash is sent, and only if LEGATO_CLIENT_HASH_KEY is set.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from legato._errors import guard

if TYPE_CHECKING:
    from legato._recorder import StreamRecorder

__all__ = [
    "began",
    "carried_by",
    "carry",
    "client_hash",
    "context",
    "current_client",
    "current_conversation",
    "is_recorded",
    "opening",
    "parent_context",
    "recorded",
    "serving",
    "unrecorded",
]

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")
_Value = TypeVar("_Value")
_client: ContextVar[str] = ContextVar("legato_client", default="")
_conversation: ContextVar[str] = ContextVar("legato_conversation", default="")
_request: ContextVar[Callable[[], Any] | None] = ContextVar("legato_request", default=None)
_opening: ContextVar[Opening | None] = ContextVar("legato_opening", default=None)
_recorded: ContextVar[_Recorded | None] = ContextVar("legato_recorded", default=None)


class _Recorded:
    """The mark of a request while it is sent. A task that is started meanwhile keeps a copy of the context, but not the mark's life."""

    __slots__ = ("is_sent",)

    def __init__(self) -> None:
        self.is_sent = False


class Opening:
    """The streams that began while a source of `legato.wrap` was opened: one of them may be the source's.

    Tasks and threads that have a copy of the context keep this object, but not its life.
    """

    __slots__ = ("begun", "is_over")

    def __init__(self) -> None:
        self.begun: list[StreamRecorder] = []
        self.is_over = False


@contextmanager
def context(*, client: str = "", conversation_id: str = "") -> Iterator[None]:
    """Assign the streams that begin inside the block to a client (user or device; sent hashed) and a conversation (sent as given)."""
    tokens = (_client.set(client), _conversation.set(conversation_id))
    try:
        yield
    finally:
        _reset(_client, tokens[0])
        _reset(_conversation, tokens[1])


def _reset(variable: ContextVar[_Value], token: Token[_Value]) -> None:
    """Give the variable its value of before. A generator that is left may be closed in another context, which never had this one."""
    with suppress(ValueError):
        variable.reset(token)


def carry(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Return ``function`` for another thread: wherever it is called, it runs in the context of this call of ``carry``.

    >>> with legato.context(conversation_id="c-7"), ThreadPoolExecutor() as pool:
    ...     answers = list(pool.map(legato.carry(ask), questions))

    That context has all context variables, as tasks of asyncio and ``asyncio.to_thread`` have them: those of `context`, OpenTelemetry's
    current span, and the application's. Each call has a copy, so calls may run at the same time. ``function`` is not a coroutine function.
    """
    carried = copy_context()

    @functools.wraps(function)
    def run(*given: _Given.args, **named: _Given.kwargs) -> _Returned:
        # A context cannot be entered twice at a time.
        return carried.copy().run(function, *given, **named)

    return run


def current_client() -> str:
    """Return the client of this context, or an empty string."""
    return _client.get()


def current_conversation() -> str:
    """Return the conversation of this context, or an empty string."""
    return _conversation.get()


@contextmanager
def serving(request_context: Callable[[], Any]) -> Iterator[None]:
    """Make this context the parent of streams that begin inside. OpenTelemetry's current span stays as it is.

    What runs inside is an application, so a request of a caller in the same process hides none of its requests.

    A span of Legato that is current would change the application's own tracing: its spans would get a parent that its back end lacks.
    """
    token = _request.set(request_context)
    try:
        with unrecorded():
            yield
    finally:
        _reset(_request, token)


def parent_context() -> Any:
    """Return the parent context of a stream that begins now; ``None``: OpenTelemetry's current one."""
    request_context = _request.get()
    if request_context is None or trace.get_current_span().get_span_context().is_valid:
        return None
    return request_context()


def carried_by(span: trace.Span) -> dict[str, str]:
    """Return the headers that carry a span's trace context; none if the application's propagator fails.

    They have nothing else of the application's context: its baggage, such as a user's address, is not for the provider of a model.
    """
    carrier: dict[str, str] = {}
    with guard("propagator"):
        propagate.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return {name: value for name, value in carrier.items() if isinstance(name, str) and isinstance(value, str)}


@contextmanager
def recorded() -> Iterator[None]:
    """Inside, an instrumentation records the request that is sent, so those below it must not."""
    mark = _Recorded()
    token = _recorded.set(mark)
    try:
        yield
    finally:
        mark.is_sent = True
        _reset(_recorded, token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Inside, an application runs, also if its caller is in the same process: requests that it sends are others than the recorded one."""
    token = _recorded.set(None)
    try:
        yield
    finally:
        _reset(_recorded, token)


def is_recorded() -> bool:
    """Whether an instrumentation above records the request that is sent now."""
    mark = _recorded.get()
    return mark is not None and not mark.is_sent


@contextmanager
def opening() -> Iterator[Opening]:
    """Inside, a source of `legato.wrap` is opened. Yield the streams that instrumentations begin meanwhile."""
    mark = Opening()
    token = _opening.set(mark)
    try:
        yield mark
    finally:
        mark.is_over = True
        _reset(_opening, token)


def began(recorder: StreamRecorder) -> StreamRecorder:
    """Report a stream that an instrumentation has begun to record, and return it."""
    mark = _opening.get()
    if mark is not None and not mark.is_over:
        mark.begun.append(recorder)
    return recorder


def client_hash(client: str, key: str) -> str:
    """Return the keyed BLAKE2b hash of the client as 16 hex digits; an empty string if the client or the key is empty."""
    if not client or not key:
        return ""
    return hashlib.blake2b(client.encode(), digest_size=8, key=key.encode()[:64]).hexdigest()
