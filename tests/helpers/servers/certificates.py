"""TLS certificates for tests, issued by a new authority."""

from __future__ import annotations

import pathlib
from datetime import UTC, datetime, timedelta

import trustme

__all__ = ["issued"]


def issued(folder: pathlib.Path, days: float = 90) -> tuple[pathlib.Path, pathlib.Path, trustme.CA]:
    """Write a certificate for 127.0.0.1, valid for ``days`` more, and its key; return both paths and the authority."""
    authority = trustme.CA()
    until = datetime.now(UTC) + timedelta(days=days)
    one = authority.issue_cert("127.0.0.1", not_before=until - timedelta(days=200), not_after=until)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    for path, blobs in ((certificate, one.cert_chain_pems), (key, [one.private_key_pem])):
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return certificate, key, authority
