"""The TLS certificate and its key: their checks at the start of the server, and their renewal while it runs.

A fault at the start is reported once, in one line, instead of by every client afterwards. Later, a pair that cannot be used leaves the one
before in use. The module opens no connection.
"""

from __future__ import annotations

import logging
import pathlib
import ssl
import time
from datetime import UTC, datetime, timedelta

from cryptography import x509

from legato_ingest.errors import SettingsError
from legato_ingest.metrics import Metrics
from legato_ingest.settings import Settings

__all__ = ["WARN_BEFORE", "Certificate", "check", "expires_at"]

_log = logging.getLogger("legato")
WARN_BEFORE = timedelta(days=14)
"""How long before the expiry of a certificate `legato serve` and `legato doctor` warn."""
_WARN_EVERY_S = 24 * 3600.0
# The two files are not replaced at the same moment, so a fault counts if the next check finds one as well.
_FAULTS_MAX = 1


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
    if ends < datetime.now(UTC):
        raise SettingsError(f"LEGATO_TLS_CERT_FILE: {certificate} expired on {ends:%Y-%m-%d %H:%M} UTC: clients would refuse it; renew it")
    _warn(certificate, ends)
    _context(certificate, key)


def _warn(certificate: pathlib.Path, ends: datetime) -> None:
    if ends - datetime.now(UTC) < WARN_BEFORE:
        _log.warning("the certificate %s expires on %s UTC: renew it", certificate, f"{ends:%Y-%m-%d %H:%M}")


def _context(certificate: pathlib.Path, key: pathlib.Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(f"LEGATO_TLS_CERT_FILE, LEGATO_TLS_KEY_FILE: {certificate} and {key} do not match ({error})") from None
    return context


class Certificate:
    """The certificate and the key that new connections get, taken again from their files when these change. Thread-safe.

    ``renew`` looks at the files. The constructor raises ``SettingsError`` when they cannot be used.
    """

    def __init__(self, certificate: pathlib.Path, key: pathlib.Path, metrics: Metrics) -> None:
        self._certificate, self._key, self._metrics = certificate, key, metrics
        self.pair = self._read()
        """The content of both files: the certificate with its chain, and the key. A renewal replaces the tuple."""
        self._context, self._ends = _context(certificate, key), expires_at(certificate)
        self._faults, self._warned_s = 0, time.monotonic()

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics) -> Certificate | None:
        """Return the certificate of the settings; None without TLS."""
        if settings.tls_cert_file is None or settings.tls_key_file is None:
            return None
        return cls(settings.tls_cert_file, settings.tls_key_file, metrics)

    def choose(self, connection: ssl.SSLObject, _name: str | None, _initial: ssl.SSLContext) -> None:
        """Give a new connection the present certificate: the ``sni_callback`` of a server's context, also for clients that send no name."""
        connection.context = self._context

    def renew(self) -> None:
        """Take the files' certificate and key if they changed. A pair that cannot be used is logged once, and counted at each check."""
        try:
            self._take()
        except SettingsError as error:
            self._faults += 1
            if self._faults > _FAULTS_MAX:
                self._metrics.errors.labels("certificate", type(error).__name__).inc()
            if self._faults == _FAULTS_MAX + 1:
                _log.error("the certificate cannot be renewed, so the one before stays in use until %s: %s", self._until(), error)
        else:
            self._faults = 0
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            _warn(self._certificate, self._ends)

    def _take(self) -> None:
        pair = self._read()
        if pair == self.pair:
            return
        check(self._certificate, self._key)
        context, ends = _context(self._certificate, self._key), expires_at(self._certificate)
        if self._read() != pair:
            raise SettingsError(f"LEGATO_TLS_CERT_FILE: {self._certificate} changed while it was read")
        self.pair, self._context, self._ends, self._warned_s = pair, context, ends, time.monotonic()
        _log.warning("new connections get the renewed certificate %s, which is valid until %s", self._certificate, self._until())

    def _until(self) -> str:
        return f"{self._ends:%Y-%m-%d %H:%M} UTC"

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return self._certificate.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise SettingsError(f"LEGATO_TLS_CERT_FILE, LEGATO_TLS_KEY_FILE: {error.filename}: {error.strerror}") from None
