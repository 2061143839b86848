"""A certificate that is renewed while `legato serve` runs, at all of its ports."""

from __future__ import annotations

import pathlib
import ssl
import sys
import time
from typing import Any

import grpc
import httpx

from helpers.builders.spans import native_span, request
from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.serving import Served, serve_process
from legato_ingest.otlp.signals import SPANS

# `legato serve`, which looks at the files every 0.1 s.
SERVE = f"""#!{sys.executable}
import sys
from legato_ingest import serve
from legato_ingest.cli.main import main
serve._RENEWED_EVERY_S = 0.1
sys.argv = ["legato", "serve"]
main()
"""


def channel(port: int, root: bytes) -> grpc.Channel:
    """A channel over which a sender that trusts this authority sends."""
    return grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(root))


def export(over: grpc.Channel) -> bool:
    """Whether a request is accepted over the channel."""
    call: Any = over.unary_unary(f"/{SPANS.service}/Export")
    body = request()
    native_span(body)
    try:
        return isinstance(call(body.SerializeToString(), timeout=10), bytes)
    except grpc.RpcError:
        return False


def read(served: Served, root: bytes) -> bool:
    """Whether clients that trust this authority can use the OTLP and the read endpoint over HTTPS."""
    context = ssl.create_default_context(cadata=root.decode())
    try:
        with httpx.Client(verify=context) as client:
            urls = f"{served.otlp}/readyz", f"{served.read}/?query=SELECT 1", f"http://127.0.0.1:{served.environ['LEGATO_WEB_PORT']}/"
            return all(client.get(url.replace("http:", "https:")).status_code == 200 for url in urls)
    except httpx.ConnectError:
        return False


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: pathlib.Path) -> None:
    """Every port presents it to new connections; a connection from before goes on."""
    certificate, key, authority = issued(tmp_path, days=5)
    before, python, port = authority.cert_pem.bytes(), tmp_path / "python", free_port()
    python.write_text(SERVE)
    python.chmod(0o755)
    ports = {"LEGATO_OTLP_GRPC_PORT": str(port), "LEGATO_WEB_PORT": str(free_port())}
    pair = {"LEGATO_TLS_CERT_FILE": str(certificate), "LEGATO_TLS_KEY_FILE": str(key)}
    with serve_process(tmp_path / "store", python=str(python), **ports, **pair) as served, channel(port, before) as kept:
        assert export(kept) and read(served, before)
        after = issued(tmp_path, days=90)[2].cert_pem.bytes()
        deadline = time.monotonic() + 60
        while not read(served, after):
            assert time.monotonic() < deadline, "the renewed certificate was not used"
            time.sleep(0.05)
        assert not read(served, before)
        with channel(port, after) as new, channel(port, before) as old:
            assert export(new) and not export(old)
        assert export(kept)
