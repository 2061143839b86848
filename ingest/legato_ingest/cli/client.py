"""The command line's client of the read endpoint.

Each query is one POST; values are bound as parameters and never become part of the statement, and rows come back as JSON. It opens no
store and does not import the store's engine. httpx is imported at the first request, so that ``legato --help`` starts without it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, STALL_MS
from legato_ingest.errors import LegatoError
from legato_ingest.quoting import Value, parameter

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_URL", "DEFAULT_USER", "CredentialsError", "ReadError", "Reader", "SloLimits"]

DEFAULT_URL = "http://127.0.0.1:8123"
DEFAULT_USER = "legato"
_TIMEOUT_S = 60
_NOT_FOUND = 404


class ReadError(LegatoError):
    """The endpoint cannot be reached, or its reply is not the result of the query."""


class CredentialsError(ReadError):
    """The endpoint needs credentials, and none were sent or they are not right."""


@dataclass(frozen=True, slots=True)
class SloLimits:
    """The limits of a good stream and the shortest stall, in ms. ``from_server``: False when the server has no ``/slo``."""

    gap_ms: float = SLO_GAP_MS
    first_output_ms: float = SLO_FIRST_OUTPUT_MS
    stall_ms: float = STALL_MS
    from_server: bool = False


class Reader:
    """A client of the endpoint at ``url``. A password is sent with ``user`` and appears in no message. Raises ``ReadError``."""

    def __init__(self, url: str = DEFAULT_URL, user: str = DEFAULT_USER, password: str = "") -> None:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise ReadError(
                "the read URL contains a user or a password: remove them, and set LEGATO_READ_USER and LEGATO_READ_PASSWORD instead"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ReadError(f"the read URL is {url!r}, expected something like {DEFAULT_URL}")
        self._where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 8123)}"
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._origin = f"{parts.scheme}://{host}:{self._where.rpartition(':')[2]}"
        self._path = parts.path or "/"
        self._credentials = (user.encode("utf-8", "surrogateescape"), password.encode("utf-8", "surrogateescape")) if password else None

    def rows(self, sql: str, parameters: Mapping[str, Value] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a query, each by column name. Raises ``ReadError``."""
        query = {"default_format": "JSONEachRow", **{f"param_{name}": parameter(value) for name, value in (parameters or {}).items()}}
        reply = self._request("POST", f"{self._path}?{urlencode(query)}", sql.encode())
        if reply.status_code != 200 or "X-ClickHouse-Format" not in reply.headers:
            raise self._complaint(reply)
        return [json.loads(line) for line in reply.content.splitlines()]

    def slo(self) -> SloLimits:
        """Return the limits that the server is set to; the defaults when it is of a version without ``/slo``. Raises ``ReadError``."""
        reply = self._request("GET", f"{self._path.rstrip('/')}/slo")
        if reply.status_code == _NOT_FOUND:
            return SloLimits()
        try:
            found = reply.json()
            gap_ms, first_ms, stall_ms = (float(found[name]) for name in ("gap_ms", "first_output_ms", "stall_ms"))
        except (ValueError, KeyError, TypeError):
            raise self._complaint(reply) from None
        return SloLimits(gap_ms, first_ms, stall_ms, from_server=True)

    def _request(self, method: str, target: str, body: bytes = b"") -> httpx.Response:
        import httpx

        # The environment's proxies are not used, because the endpoint is usually on this host. OpenSSL's own context reads SSL_CERT_FILE.
        verify = ssl.create_default_context() if self._origin.startswith("https:") else True
        try:
            with httpx.Client(auth=self._credentials, timeout=_TIMEOUT_S, trust_env=False, verify=verify) as client:
                return client.request(method, self._origin + target, content=body or None)
        except httpx.TimeoutException:
            raise ReadError(
                f"{self._where} did not answer within {_TIMEOUT_S} s: retry, or query a shorter time range (--since 15m)"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if any(isinstance(cause, ConnectionRefusedError) for cause in _causes(error)):
                raise ReadError(
                    f"no `legato serve` on {self._where}: start it with `legato serve`, or set its address with --url or LEGATO_READ_URL"
                ) from None
            raise ReadError(
                f"cannot query {self._where} ({type(error).__name__}: {error}): is it the read port of `legato serve`?"
            ) from None

    def _complaint(self, reply: httpx.Response) -> ReadError:
        code = reply.headers.get("X-ClickHouse-Exception-Code")
        if code is None:
            return ReadError(
                f"{self._where} answers (status {reply.status_code}), but not as a read endpoint: is it the read port of `legato serve`?"
            )
        if code == "516" and self._credentials is None:
            return CredentialsError(
                f"{self._where} needs a password or a token: set LEGATO_READ_USER and LEGATO_READ_PASSWORD; a token needs no user"
            )
        if code == "516":
            return CredentialsError(
                f"the user, the password or the token for {self._where} is not right: set LEGATO_READ_USER and LEGATO_READ_PASSWORD"
            )
        text = reply.content.decode("utf-8", "replace").strip()[:500]
        if code == "60":
            return ReadError(
                f"the store behind {self._where} lacks a table of this version ({text}): `legato schema status` shows what is applied"
            )
        return ReadError(f"{self._where} refused the query (status {reply.status_code}): {text}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors that led to it."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__
