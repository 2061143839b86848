"""The credentials that a request carries: bearer tokens, HTTP Basic (RFC 7617) and ClickHouse's own headers.

It parses and compares; who may do what is decided by ``authenticate``. No message holds what a request gave.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from fastapi import Request

__all__ = ["denial", "has_password_in_url", "token_in"]

_IN_URL = frozenset(("user", "password"))
_KEY_HEADERS = frozenset(("x-clickhouse-user", "x-clickhouse-key"))
_HOW = "send `Authorization: Basic`, or the headers X-ClickHouse-User and X-ClickHouse-Key"


def token_in(authorization: str, key: str = "") -> bytes | None:
    """Return the token of the headers Authorization (Bearer, or Basic with any user) and X-ClickHouse-Key; None without one."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        pair = _basic(value)
        return (pair[1] or None) if pair else None
    return key.encode("latin-1", "replace") if key and not authorization else None


def has_password_in_url(request: Request) -> bool:
    """Whether the URL carries a user or a password, which logs would keep."""
    return not _IN_URL.isdisjoint(request.query_params)


def denial(request: Request, user: str, password: str) -> str:
    """Return why this request lacks the required user and password; empty when it carries them."""
    if has_password_in_url(request):
        return f"a URL must not carry user and password, because logs keep URLs: {_HOW}"
    if "authorization" in request.headers and not _KEY_HEADERS.isdisjoint(request.headers):
        return f"the request has two kinds of credentials, and only one is allowed: {_HOW}"
    given = _user_and_password(request)
    if given is None:
        return f"this endpoint needs a user and a password: {_HOW}"
    # Both are always compared, so that the time taken reveals nothing about either.
    wanted = (text.encode("utf-8", "surrogateescape") for text in (user, password))
    is_user, is_password = (hmac.compare_digest(a, b) for a, b in zip(given, wanted, strict=True))
    return "" if is_user and is_password else "the user or the password is wrong: see LEGATO_READ_USER and LEGATO_READ_PASSWORD"


def _user_and_password(request: Request) -> tuple[bytes, bytes] | None:
    """The user and the password of the headers; None when there are none or they cannot be decoded."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        return _basic(value)
    # The server passes headers on as Latin-1, in whichever encoding the client sent them.
    names = [request.headers.get(name, "").encode("latin-1") for name in ("x-clickhouse-user", "x-clickhouse-key")]
    return (names[0], names[1]) if all(names) else None


def _basic(value: str) -> tuple[bytes, bytes] | None:
    """The user and the password of a Basic credential (RFC 7617 §2); None when it is malformed."""
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
