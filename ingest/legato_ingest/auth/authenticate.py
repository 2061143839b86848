"""Authentication of both endpoints: which tenant a request writes or reads as.

``Authenticator`` is the only place that checks tokens and the readers' password. Without either, every request that reaches an endpoint is
allowed; ``serve`` then listens on loopback only. It sends no reply: it returns a tenant or raises ``Denied``.
"""

from __future__ import annotations

from fastapi import Request

from legato_ingest.auth.credentials import denial, has_password_in_url, token_in
from legato_ingest.auth.tokens import READ, WRITE, Tokens
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import Denied, Forbidden
from legato_ingest.settings import Settings

__all__ = ["Authenticator"]

_HOW = "send `Authorization: Bearer TOKEN`"
_HOW_TO_READ = f"{_HOW}, or the token as the password of any user"


class Authenticator:
    """The tokens of ``settings`` and the readers' password. Raises ``SettingsError`` when the tokens' file cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._user, self._password = settings.read_user, settings.read_password.get_secret_value()
        self.tokens = Tokens(settings.tokens_file) if settings.tokens_file else None

    @property
    def guards_reading(self) -> bool:
        """Whether readers need credentials."""
        return bool(self._password or self.tokens)

    def writer(self, authorization: str, origin: str = "") -> str:
        """Return the tenant that a request with these headers writes as; the empty tenant where no tokens are configured.

        Raises ``Denied``, and ``Forbidden`` for a token of another origin.
        """
        if self.tokens is None:
            return ""
        given = token_in(authorization)
        if given is None:
            raise Denied(f"no token: {_HOW}")
        token = self.tokens.find(given, WRITE)
        if token is None:
            raise Denied("this token may not write here: `legato token list` shows the tokens that may")
        if token.origin and token.origin != origin.lower():
            raise Forbidden("this token is bound to web pages of one origin, and the request has another Origin header or none")
        return token.tenant

    def reader(self, request: Request) -> str:
        """Return the tenant that this request may read, or ``ALL_TENANTS``. Raises ``Denied``."""
        if not self.guards_reading:
            return ALL_TENANTS
        why = denial(request, self._user, self._password)
        if has_password_in_url(request):
            raise Denied(why)
        given = token_in(request.headers.get("authorization", ""), request.headers.get("x-clickhouse-key", ""))
        # The token is tried first: it grants less than the password, in case one text was configured as both.
        token = self.tokens.find(given, READ) if self.tokens is not None and given is not None else None
        if token is not None:
            return token.tenant
        if self._password and not why:
            return ALL_TENANTS
        if self.tokens is None:
            raise Denied(why)
        raise Denied(
            f"no token: {_HOW_TO_READ}" if given is None else "this token may not read here: `legato token list` shows the tokens that may"
        )
