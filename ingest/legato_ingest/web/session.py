"""Sessions of browsers: a cookie with a random name for the credentials that a user entered.

A browser cannot send an Authorization header by following a link, and a token in a cookie would be readable in a copy of the browser's
profile, so the credentials stay in this process and the cookie holds a random identifier. The credentials are checked at every request:
a token that was removed stops working at once. Sessions end after 12 hours and with the process. This module checks no credentials.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from fastapi import Request, Response

__all__ = ["COOKIE", "Sessions"]

COOKIE = "legato_session"
_LIFETIME_S = 12 * 3_600
_SESSIONS_MAX = 1_000
_OF_ONE_MAX = 20


class Sessions:
    """At most 1,000 sessions, 20 of the same credentials; beyond that the oldest ends. ``clock``: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._credentials: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def begin(self, response: Response, authorization: str, *, secure: bool) -> None:
        """Start a session with the value of an Authorization header, and set its cookie on the response."""
        self._make_room(authorization)
        identifier = secrets.token_urlsafe(32)
        self._credentials[identifier] = (authorization, self._clock() + _LIFETIME_S)
        response.set_cookie(COOKIE, identifier, max_age=_LIFETIME_S, path="/", secure=secure, httponly=True, samesite="strict")

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request, if there is one."""
        self._credentials.pop(request.cookies.get(COOKIE, ""), None)
        response.delete_cookie(COOKIE, path="/")

    def _make_room(self, authorization: str) -> None:
        """End the sessions that have expired, and the oldest ones beyond the limits. One reader cannot end the sessions of others."""
        now = self._clock()
        for identifier in [name for name, (_, until) in self._credentials.items() if now >= until]:
            del self._credentials[identifier]
        same = [name for name, (given, _) in self._credentials.items() if given == authorization]
        for identifier in same[: max(0, len(same) + 1 - _OF_ONE_MAX)]:
            del self._credentials[identifier]
        while len(self._credentials) >= _SESSIONS_MAX:
            self._credentials.popitem(last=False)

    def authorized(self, request: Request) -> Request:
        """Return the request with the credentials of its session as the Authorization header; the same request without a session.

        Credentials that the request itself carries take precedence.
        """
        authorization, until = self._credentials.get(request.cookies.get(COOKIE, ""), ("", 0.0))
        if not authorization or self._clock() >= until or "authorization" in request.headers:
            return request
        headers = [*request.scope["headers"], (b"authorization", authorization.encode("latin-1"))]
        return Request({**request.scope, "headers": headers}, request.receive)
