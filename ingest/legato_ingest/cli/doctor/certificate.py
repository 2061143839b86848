"""The check of the certificate: the file, and the one that the endpoints present.

Senders see the presented one. The file may be newer, if `legato serve` could not take it. The handshake verifies nothing, and no request
follows it.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

from cryptography import x509

from legato_ingest.auth import tls
from legato_ingest.cli.doctor.findings import Finding, Setup, fault, skipped, warning, well
from legato_ingest.errors import LegatoError

__all__ = ["certificate"]

_NAME = "certificate"
_TIMEOUT_S = 5.0
_RENEW = "renew it: `legato serve` takes the renewed files within a minute"
_TAKE = "`legato serve` takes renewed files within a minute: if not, its log says why, and a restart takes them"


def certificate(setup: Setup) -> Finding:
    """Check that the certificate is valid, and for how long: in the file, and as the endpoints present it."""
    path = setup.settings.tls_cert_file
    presented = min(_presented(setup), key=lambda each: each[1].not_valid_after_utc, default=None)
    if path is None:
        if presented is None:
            return skipped(_NAME, "LEGATO_TLS_CERT_FILE is not set: the endpoints use plain HTTP")
        return _judged(f"{presented[0]} presents one that", presented[1])
    try:
        tls.check(path, setup.settings.tls_key_file)
    except LegatoError as error:
        return fault(_NAME, str(error), _RENEW)
    file = x509.load_pem_x509_certificate(path.read_bytes())
    if presented is None:
        return _judged(str(path), file)
    url, shown = presented
    # Not every difference: a proxy in front of the endpoint has another certificate.
    if file.not_valid_before_utc > shown.not_valid_before_utc:
        found = f"{path} was renewed and {_validity(file)}, but {url} presents an earlier one that {_validity(shown)}"
        return (fault if _is_expired(shown) else warning)(_NAME, found, _TAKE)
    if file.not_valid_after_utc < shown.not_valid_after_utc:
        return _judged(str(path), file)
    return _judged(f"{url} presents {path}, which" if shown == file else f"{url} presents one that", shown)


def _presented(setup: Setup) -> Iterator[tuple[str, x509.Certificate]]:
    """The endpoints with TLS that answer, and their certificates. Other checks report an endpoint that does not answer."""
    for url in (setup.otlp_url, setup.read_url):
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            with contextlib.suppress(OSError, ValueError):
                text = ssl.get_server_certificate((parts.hostname, parts.port or 443), timeout=_TIMEOUT_S)
                yield url, x509.load_pem_x509_certificate(text.encode("ascii"))


def _judged(what: str, found: x509.Certificate) -> Finding:
    text, left = f"{what} {_validity(found)}", found.not_valid_after_utc - datetime.now(UTC)
    if _is_expired(found):
        return fault(_NAME, text, _RENEW)
    return warning(_NAME, text, _RENEW) if left < tls.WARN_BEFORE else well(_NAME, text)


def _is_expired(found: x509.Certificate) -> bool:
    return found.not_valid_after_utc < datetime.now(UTC)


def _validity(found: x509.Certificate) -> str:
    ends = found.not_valid_after_utc
    return f"expired on {ends:%Y-%m-%d %H:%M} UTC" if _is_expired(found) else f"is valid for {(ends - datetime.now(UTC)).days} days"
