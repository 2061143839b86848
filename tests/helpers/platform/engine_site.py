"""Engines' metrics endpoints over real HTTP, with recorded texts."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Mapping, Sequence

from helpers.builders.scripted import Server, answer, bound, read_request
from legato_gpu_agent.collectors.measurement import Measured, Measurement

__all__ = ["GRAFANA", "KINDS", "METRICS", "PROMETHEUS", "Site", "kind_of", "site"]

_TEXTS = pathlib.Path(__file__).parents[2] / "gpu_agent" / "data" / "responses"
METRICS, PROMETHEUS = "/metrics", "/prometheus/metrics"
KINDS = {
    "vllm": {METRICS: "vllm_0.32.txt"},
    "sglang": {METRICS: "sglang_0.5.txt"},
    "tensorrt_llm": {METRICS: "tensorrt_llm_iterations.json", PROMETHEUS: "tensorrt_llm_prometheus.txt"},
    "llamacpp": {METRICS: "llamacpp.txt"},
    "triton": {METRICS: "triton_tensorrtllm.txt"},
}
GRAFANA = {METRICS: b"# TYPE grafana_up gauge\ngrafana_up 1\n"}
"""An endpoint of another program."""


def site(kind: str) -> dict[str, bytes]:
    """Return all responses of an engine of this kind, by path."""
    return {path: (_TEXTS / name).read_bytes() for path, name in KINDS[kind].items()}


class Site:
    """Serves texts by path, and 404 for others; the texts can be replaced while it runs."""

    def __init__(self, texts: Mapping[str, bytes], listener: socket.socket | None = None) -> None:
        self.texts, self.requested, self.status = dict(texts), list[str](), ""
        listener = listener or bound()
        self.port: int = listener.getsockname()[1]
        self.url, self.engine_id = f"http://127.0.0.1:{self.port}", f"127.0.0.1:{self.port}"
        self._server = Server(self._talk, listener=listener)

    def __enter__(self) -> Site:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def _talk(self, connection: socket.socket) -> None:
        path = read_request(connection).split(b" ", 2)[1].decode()
        self.requested.append(path)
        status = self.status or ("200 OK" if path in self.texts else "404 Not Found")
        connection.sendall(answer(self.texts.get(path, b"no"), status, "Connection: close"))


def kind_of(found: Sequence[Measured]) -> str:
    """Return the engine kind of the first measurement, for an engine with more measurements than that."""
    up = found[0]
    assert isinstance(up, Measurement) and (up.metric, up.value) == ("legato.engine.up", 1.0) and len(found) > 5
    return dict(up.attributes)["legato.engine.kind"]
