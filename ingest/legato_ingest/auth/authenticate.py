"""Who may pass a door, and as which tenant.

One idea: both doors ask here, so there is one place that knows tokens and the readers' password. Without either, whoever reaches the doors
may pass: `serve` then opens them on loopback alone. It answers nothing; it says who, or raises ``Denied``.
"""

from __future__ import annotations

from fastapi import Request

from legato_ingest.auth.tokens import EVERYONE, READ, WRITE, Tokens, given_by
from legato_ingest.errors import Denied
from legato_ingest.query.clickhouse_http import denial, has_password_in_url
from legato_ingest.settings import Settings

__all__ = ["Gate"]

_HOW = "send `Authorization: Bearer TOKEN`"
_HOW_TO_READ = f"{_HOW}, or the token as the password of any user"


class Gate:
    """The tokens of ``settings`` and the readers' password. Raises ``SettingsError`` when the tokens' file cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._user, self._password = settings.read_user, settings.read_password.get_secret_value()
        self.tokens = Tokens(settings.tokens_file) if settings.tokens_file else None

    @property
    def guards_reading(self) -> bool:
        """Whether a reader must say who asks."""
        return bool(self._password or self.tokens)

    def writer(self, request: Request) -> str:
        """The tenant as which this request writes; the empty one where there are no tokens. Raises ``Denied``."""
        if self.tokens is None:
            return ""
        given = given_by(request.headers.get("authorization", ""))
        if given is None:
            raise Denied(f"no token: {_HOW}")
        token = self.tokens.holder(given, WRITE)
        if token is None:
            raise Denied("this token may not write here: `legato token list` shows those that may")
        return token.tenant

    def reader(self, request: Request) -> str:
        """The tenant whose rows this request may read, or ``EVERYONE``. Raises ``Denied``, whose message holds nothing that was given."""
        if not self.guards_reading:
            return EVERYONE
        why = denial(request, self._user, self._password)
        if has_password_in_url(request):
            raise Denied(why)
        given = given_by(request.headers.get("authorization", ""), request.headers.get("x-clickhouse-key", ""))
        # A token first: it says less than the password, should somebody have set one for the other.
        token = self.tokens.holder(given, READ) if self.tokens is not None and given is not None else None
        if token is not None:
            return token.tenant
        if self._password and not why:
            return EVERYONE
        if self.tokens is None:
            raise Denied(why)
        raise Denied(
            f"no token: {_HOW_TO_READ}" if given is None else "this token may not read here: `legato token list` shows those that may"
        )
