"""The errors that ingest raises on purpose.

A message states what was found, what was expected and what to do next. An error carries no more than its handler needs for a reply.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = [
    "BadRequest",
    "ConversionEnded",
    "Denied",
    "Forbidden",
    "LegatoError",
    "Locked",
    "MEMORY_LIMIT_EXCEEDED",
    "Overloaded",
    "QueryEnded",
    "SchemaError",
    "SenderLeft",
    "SettingsError",
    "StoreError",
    "StoreRefused",
    "StoreRestarting",
    "StoreUnavailable",
    "TooLarge",
    "release",
]


MEMORY_LIMIT_EXCEEDED = 241
"""ClickHouse's code for a statement that needs more memory than its limit."""


class LegatoError(Exception):
    """Base class of all errors that Legato raises on purpose. Its message is written for people."""


class SettingsError(LegatoError):
    """A setting or a file that a setting names is invalid."""


class Locked(LegatoError):
    """Another process has the store open."""


class SchemaError(LegatoError):
    """The schema of the store does not match the migration files of this version."""


class StoreError(LegatoError):
    """An error of the store. ``code`` is ClickHouse's error code; 0 when the driver failed before ClickHouse answered."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class StoreUnavailable(StoreError):
    """The store cannot run the statement now; a retry may succeed (503)."""


class StoreRestarting(StoreUnavailable):
    """The process of an embedded store ended during the call and is started again: a retry in a second or two succeeds.

    ``tenants``: those with queries that ran; they may be the cause. ``is_fault``: a fault of the engine or a want of memory, and not
    a signal from an administrator.
    """

    def __init__(self, message: str, tenants: Collection[str] = (), *, is_fault: bool = False) -> None:
        super().__init__(message)
        self.tenants, self.is_fault = frozenset(tenants), is_fault


class QueryEnded(StoreUnavailable):
    """A reader's statement was ended with the process of an embedded store, because statements went beyond a limit.

    ``tenants``: those with queries that ran. ``is_alone``: it was this query, beside nothing else.
    """

    def __init__(self, message: str, code: int, tenants: Collection[str] = (), *, is_alone: bool = True) -> None:
        super().__init__(message, code)
        self.tenants, self.is_alone = frozenset(tenants), is_alone


class StoreRefused(StoreError):
    """The store refuses the statement or its data; a retry fails again."""


class Overloaded(LegatoError):
    """A queue or quota is full and nothing of the request was stored (429). ``retry_after_s`` is None when the time is unknown.

    ``hold_s``: the reply is to be held back for so long.
    """

    def __init__(self, message: str, retry_after_s: int | None = None, hold_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s, self.hold_s = retry_after_s, hold_s


class ConversionEnded(LegatoError):
    """The process that converted a large body ended within it, perhaps for want of memory; a retry may succeed.

    ``is_late``: it was ended because it took too long, and would again.
    """

    def __init__(self, message: str, *, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_late = is_late


class SenderLeft(LegatoError):
    """A sender that closed its connection within its request; nothing of it was stored, and no one reads the reply."""


class BadRequest(LegatoError):
    """A request that is invalid and must not be retried (400, or ``status``)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Denied(BadRequest):
    """A request without credentials that permit it (401)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 401)


class Forbidden(BadRequest):
    """A request with valid credentials that do not permit it (403)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class TooLarge(BadRequest):
    """A request over a limit: bytes of its body before or after decompression, or number of items (413)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 413)


def release(error: BaseException | None) -> None:
    """Release the frames of an error that is handled, and of those before it.

    An error that came through a future is in a cycle with the frame that waited for it. Its frames, with the body of a request, would stay
    until the garbage collector runs, which counts objects and not bytes: some hundred refused bodies of 64 MiB took all memory.
    """
    while error is not None:
        error.__traceback__, error = None, error.__context__
