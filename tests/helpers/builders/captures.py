"""The captured traffic of real emitters in `tests/data/emitters`, and what the server that they streamed from knows to be true."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.converted import convert_body
from helpers.repo.repository import ROOT
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.json_body import to_protobuf
from legato_ingest.otlp.signals import SPANS

__all__ = ["CAPTURES", "Capture", "capture"]

_FOLDER = ROOT / "tests" / "data" / "emitters"


@dataclass(frozen=True, slots=True)
class Capture:
    """One capture: the requests of an emitter as they arrived, and the truth about each response, by its id."""

    name: str
    requests: list[dict[str, str]]
    truth: dict[str, dict[str, Any]]

    @property
    def now_ns(self) -> int:
        """A time shortly after the capture."""
        return int(max(each["request_start_ns"] for each in self.truth.values())) + 60_000_000_000

    def bodies(self, path: str = "traces") -> Iterator[tuple[str, bytes]]:
        """Yield the content type and the decompressed body of each request to a path that ends with ``path``."""
        for request in self.requests:
            if request["path"].endswith(path):
                body = base64.b64decode(request["body"])
                yield request["content_type"], gzip.decompress(body) if request["content_encoding"] == "gzip" else body

    def traces(self) -> Iterator[ExportTraceServiceRequest]:
        """Yield the requests with spans."""
        for content_type, body in self.bodies():
            yield ExportTraceServiceRequest.FromString(to_protobuf(body, SPANS, "")[0] if "json" in content_type else body)

    def batches(self) -> list[Batch]:
        """The batches of the requests with spans."""

        def fault(error: Exception) -> None:
            raise error

        out = []
        for content_type, body in self.bodies():
            refused = []
            if "json" in content_type:
                body, batch = to_protobuf(body, SPANS, "")
                refused.append(batch)
            converted = convert_body(body, tenant="", now_ns=self.now_ns, limits=Limits(), on_fault=fault)
            out.append(Batch.joined([*refused, converted]))
        return out


def capture(name: str) -> Capture:
    """Read one capture."""
    content = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Capture(name, content["requests"], {each["response_id"]: each for each in content["truth"]})


CAPTURES = sorted(path.stem for path in _FOLDER.glob("*.json"))
