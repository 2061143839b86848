"""The errors that ingest raises on purpose.

One idea: each says what was found, what was expected and what to do next, and carries no more than the caller needs to answer.
"""

from __future__ import annotations

__all__ = [
    "BadRequest",
    "Denied",
    "LegatoError",
    "Locked",
    "Overloaded",
    "SchemaError",
    "SettingsError",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "TooLarge",
]


class LegatoError(Exception):
    """Any error that Legato raises on purpose. Its message is for people."""


class SettingsError(LegatoError):
    """A setting that cannot be used."""


class Locked(LegatoError):
    """Another process holds the store."""


class SchemaError(LegatoError):
    """The store's schema and the files of this version cannot go together."""


class StoreError(LegatoError):
    """What the store answered. ``code`` is ClickHouse's (0 when the driver failed before it)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class StoreUnavailable(StoreError):
    """The store cannot do it now; the same request may succeed later (503)."""


class StoreRefused(StoreError):
    """The store will never take this; the same request fails again."""


class Overloaded(LegatoError):
    """More waits, or comes, than the bounds allow; nothing of this request was taken (429). ``retry_after_s``: where it is known."""

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BadRequest(LegatoError):
    """A request that will never be right (400, or ``status``)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Denied(BadRequest):
    """Nobody who may do this asked it (401)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 401)


class TooLarge(BadRequest):
    """A body over the limit, before or after decompression (413)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 413)
