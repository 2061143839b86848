"""The check of OTLP over gRPC: the port answers, speaks OTLP, and accepts the write token.

`legato serve` runs without gRPC if another program has the port, and emitters that use gRPC, the default of many SDKs, then send to that
program. The request is empty and changes nothing.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from legato_ingest.cli.doctor.findings import Check, Finding, Setup, bearer, fault, skipped, warning, well

__all__ = ["CHECKS"]

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_TIMEOUT_S = 5.0
# The port answers, but not as gRPC, or as gRPC without this service.
_ANOTHER = frozenset((grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL))


def otlp_grpc(setup: Setup) -> Finding:
    """Check that an emitter's request over gRPC is accepted, on the host of the OTLP endpoint and the port of the settings."""
    name, port = "OTLP over gRPC", setup.settings.otlp_grpc_port
    if not port:
        return skipped(name, "LEGATO_OTLP_GRPC_PORT is 0")
    parts = urlsplit(setup.otlp_url)
    host = parts.hostname or "127.0.0.1"
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with _channel(address, is_tls=parts.scheme == "https") as channel:
        export: Any = channel.unary_unary(_METHOD, response_deserializer=ExportTraceServiceResponse.FromString)
        metadata = tuple((key.lower(), value) for key, value in bearer(setup.token).items())
        try:
            export(b"", metadata=metadata, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return _failed(name, address, setup, error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN)
    return well(name, f"{address} accepts an emitter's request")


def _channel(address: str, *, is_tls: bool) -> grpc.Channel:
    # A proxy of the environment is for web pages.
    options = (("grpc.enable_http_proxy", 0),)
    if not is_tls:
        return grpc.insecure_channel(address, options)
    # The same file as for HTTPS.
    trusted = os.environ.get("SSL_CERT_FILE")
    root = pathlib.Path(trusted).read_bytes() if trusted else None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root), options)


def _failed(name: str, address: str, setup: Setup, code: grpc.StatusCode) -> Finding:
    if code is grpc.StatusCode.UNAUTHENTICATED:
        todo = "`legato token list` shows the tokens that may write; LEGATO_TOKEN" if setup.token else "LEGATO_TOKEN, or `legato token add`"
        return fault(name, f"{address} does not accept this token" if setup.token else f"{address} needs a token, and none is set", todo)
    if code in _ANOTHER:
        return fault(
            name,
            f"{address} answers, but not as Legato's OTLP endpoint ({code.name})",
            "another program has this port, and gets the data of emitters that use gRPC: set LEGATO_OTLP_GRPC_PORT for both",
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        # Without an explicit setting, there may be no emitter that needs it.
        finding = fault if "otlp_grpc_port" in setup.settings.model_fields_set else warning
        todo = "see the log of `legato serve` for `no OTLP over gRPC`; LEGATO_OTLP_GRPC_PORT sets the port, 0 switches gRPC off"
        return finding(name, f"no answer of a gRPC server at {address}", todo)
    return fault(name, f"{address} refuses an empty request ({code.name})", "see the log of `legato serve`")


CHECKS = (Check("OTLP over gRPC", otlp_grpc, "OTLP endpoint"),)
