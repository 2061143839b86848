"""Whether a certificate and its key can serve, now.

One idea: what is wrong with them is said when the server starts, in one line, instead of by every client afterwards. It serves nothing.
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
_SOON = timedelta(days=14)


def expires_at(certificate: pathlib.Path) -> datetime:
    """When the first certificate of a PEM file stops being valid. Raises ``SettingsError``."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except OSError as error:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate} holds no certificate in PEM") from None


def check(certificate: pathlib.Path | None, key: pathlib.Path | None) -> None:
    """Raise ``SettingsError`` unless these two go together and are valid now; warn when they will not be for long. Neither: no TLS."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise SettingsError("LEGATO_TLS_CERT_FILE and LEGATO_TLS_KEY_FILE go together: one of them is not set")
    ends = expires_at(certificate)
    left = ends - datetime.now(UTC)
    if left < timedelta():
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate} expired on {ends:%Y-%m-%d %H:%M} UTC: clients would refuse it; renew it")
    if left < _SOON:
        _log.warning("the certificate %s expires on %s UTC: renew it and restart", certificate, f"{ends:%Y-%m-%d %H:%M}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE, LEGATO_TLS_KEY_FILE: {certificate} and {key} do not go together ({error})") from None
