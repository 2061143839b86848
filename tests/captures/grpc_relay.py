"""Receive OTLP over gRPC and post each message, byte for byte, to the sink. Runs in an environment that has grpcio.

Prints its port when it listens, and serves until it is killed. Each call is answered with an empty message: all was accepted.
"""

from __future__ import annotations

import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc

_PATHS = {"TraceService": "/v1/traces", "MetricsService": "/v1/metrics", "LogsService": "/v1/logs"}


class _Relay(grpc.GenericRpcHandler):
    def __init__(self, sink: str) -> None:
        self._sink = sink

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = _PATHS[handler_call_details.method.split("/")[1].rsplit(".", 1)[1]]

        def call(body: bytes, context: grpc.ServicerContext) -> bytes:
            headers = {"content-type": "application/x-protobuf", "x-captured-transport": "grpc"}
            with urllib.request.urlopen(urllib.request.Request(self._sink + path, body, headers)):
                return b""

        return grpc.unary_unary_rpc_method_handler(call, request_deserializer=None, response_serializer=None)


def main() -> None:
    """Serve on a free port; the sink's address is the only argument."""
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((_Relay(sys.argv[1]),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
