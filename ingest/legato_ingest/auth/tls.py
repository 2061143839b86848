"""Checks of the TLS certificate and its key at the start of the server.

A fault is reported once, in one line, instead of by every client afterwards. The module opens no connection.
"""

from __future__ import annotations

import logging
import pathlib
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509

from legato_ingest.errors import SettingsError

__all__ = ["check", "expires_at"]

_log = logging.getLogger("legato")
_WARN_BEFORE = timedelta(days=14)


def expires_at(certificate: pathlib.Path) -> datetime:
    """Return when the first certificate of a PEM file expires. Raises ``SettingsError``."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except OSError as error:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate} is not a PEM file with a certificate") from None


def check(certificate: pathlib.Path | None, key: pathlib.Path | None) -> None:
    """Check a certificate and its key; without both there is no TLS. Warns within 14 days of expiry. Raises ``SettingsError``."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise SettingsError("only one of LEGATO_TLS_CERT_FILE and LEGATO_TLS_KEY_FILE is set: set both or none")
    ends = expires_at(certificate)
    left = ends - datetime.now(UTC)
    if left < timedelta():
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate} expired on {ends:%Y-%m-%d %H:%M} UTC: clients would refuse it; renew it")
    if left < _WARN_BEFORE:
        _log.warning("the certificate %s expires on %s UTC: renew it and restart", certificate, f"{ends:%Y-%m-%d %H:%M}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE, LEGATO_TLS_KEY_FILE: {certificate} and {key} do not match ({error})") from None
