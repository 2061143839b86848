"""Names as libraries spell them: texts of a Python class, an exception, an enumeration's member, a method, a time, or a URL for a host.

Such a text holds the name that was meant; the functions return that name, and any other text as it is. Of an error's message they return
the line that says what happened. The module reads no attribute.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import urlsplit

__all__ = ["error_name", "finish_name", "host_of", "names_a_stream", "port_of", "provider_name", "said_of", "unix_micros"]

_CLASS = re.compile(r"<class '([\w.]+)'>")
# The representation of an exception, as in `ReadTimeout('…')`.
_CALL = re.compile(r"([A-Z]\w*)\(")
_MEMBER = re.compile(r"\w*FinishReason\.(\w+)")
# Methods that stream, such as `astream_chat`, `converse_stream`, `GenerateContentStream`. Dots separate the parts of a name.
_STREAMS = re.compile(r"(?:Stream|(?:^|[^a-z]|\ba)stream)[^.]*$")
_NAME_CHARACTERS_MAX = 256
_PORT = re.compile(r"([^:]*):(\d{1,5})")
# The interface of a provider, which the AI SDK adds to its name, as in `openai.chat`.
_INTERFACES = (".chat", ".responses", ".completion", ".messages")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# `fromisoformat` reads at most six digits of a second's fraction; JavaScript libraries send nine.
_LONG_FRACTION = re.compile(r"(\.\d{6})\d+")
_TRACEBACK = "Traceback (most recent call last)"
# gRPC's text of an error has its status in the second line.
_GRPC_STATUS = re.compile(r"status = (StatusCode\.[A-Z_]+)")
# Types that say no more than that something failed.
_GENERAL = frozenset(("Exception", "BaseException", "Error"))


def error_name(kind: str, message: str) -> str:
    """Return the type of an error. A general type gives way to the one at the begin of its message; the rest of it is never returned."""
    found = _CLASS.fullmatch(kind)
    if found:
        return found[1]
    inner = _CALL.match(message) if kind in _GENERAL else None
    return inner[1] if inner else kind


def said_of(message: str) -> str:
    """Return the line of an error's message that says what happened: the first one, or of a traceback the last one.

    A traceback quotes lines of source code, such as `event = self._receive_event(timeout=timeout)`.
    """
    before, traceback, _ = message.partition(_TRACEBACK)
    before = before.strip()
    if before:
        status = _GRPC_STATUS.search(before)
        return status[1] if status else before.partition("\n")[0]
    last = message.rstrip().rpartition("\n")[2] if traceback else ""
    # Where a text was cut, the last line of it is one of the source code.
    return "" if last[:1].isspace() else last


def finish_name(text: str) -> str:
    """Return a finish reason, also out of the text of an enumeration's member (`FinishReason.STOP`)."""
    found = _MEMBER.fullmatch(text)
    return found[1].lower() if found else text


def provider_name(text: str) -> str:
    """Return a provider in small letters, without its interface."""
    name = text.lower()
    return next((name.removesuffix(each) for each in _INTERFACES if name.endswith(each)), name)


def names_a_stream(name: str) -> bool:
    """Return whether a span's name, which begins with a library's method, is that of a method that streams."""
    return _STREAMS.search(name[:_NAME_CHARACTERS_MAX]) is not None


def host_of(address: str) -> str:
    """Return the host of an address, which may be a URL or have a port."""
    if "://" not in address:
        found = _PORT.fullmatch(address)
        return found[1] if found else address
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def port_of(address: str) -> int:
    """Return the port in an address; 0 where it has none."""
    try:
        return urlsplit(address if "://" in address else f"//{address}").port or 0
    except ValueError:
        return 0


def unix_micros(text: str) -> int | None:
    """Return an ISO 8601 time as µs since the epoch; None where it is not one. A time without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(_LONG_FRACTION.sub(r"\1", text))
    except ValueError:
        return None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
