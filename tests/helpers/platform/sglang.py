"""SGLang's files of finished requests: their lines, and a folder with the collector that reads it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from helpers.platform.engine_sources import NOW
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.collectors.sglang_requests import RequestFiles
from legato_gpu_agent.plugin.model import FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ANSWER", "PROMPT", "STOP", "RequestFolder", "request_line"]

PROMPT, ANSWER, STOP = "the prompt of a customer", "the answer to it", "a text that ends it"


def request_line(response_id: str = "r1", **changed: Any) -> bytes:
    """Return a line as SGLang 0.5.23 writes it with --enable-metrics; ``Ellipsis`` removes a field."""
    parameters = {"rid": response_id, "text": PROMPT, "sampling_params": {"max_new_tokens": 40}, "stream": True}
    fields = {
        "request_parameters": json.dumps(parameters),
        "id": response_id,
        "finish_reason": {"type": "stop", "matched": STOP},
        "prompt_tokens": 1_200,
        "weight_version": "default",
        "num_retractions": 2,
        "forward_entry_time": 1_795_000_000.25,
        "prefill_finished_time": 1_795_000_000.5,
        "queue_time": 0.0425,
        "reasoning_tokens": 0,
        "completion_tokens": 311,
        "cached_tokens": 64,
        "customized": {"text": ANSWER},
        "dp_rank": 0,
        "e2e_latency": 9.75,
        "request_received_ts": 1_795_000_000.125,
        "first_token_latency": 0.5,
        "api_server_dispatch_finish_ts": 1_795_000_000.126,
        "request_finished_ts": 1_795_000_009.875,
        "decode_throughput": 33.5,
        "response_sent_to_client_ts": 1_795_000_000.627,
        **changed,
    }
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode() + b"\n"


class RequestFolder:
    """A folder, the collector that reads it, and the emitted requests."""

    def __init__(self, folder: pathlib.Path, epoch_ns: int = -1) -> None:
        self.folder = folder
        self.emitted: list[Datagram] = []
        self.epoch_ns = epoch_ns
        self.files = RequestFiles("e", folder, self.emitted.append, epoch_ns=None if epoch_ns < 0 else lambda: self.epoch_ns)

    def file(self, hour: int = 14) -> pathlib.Path:
        """Return the file of an hour."""
        return self.folder / f"sglang-request-metrics-20261121_{hour:02d}.log"

    def append(self, data: bytes, hour: int = 14) -> None:
        """Append to the file of an hour, as SGLang does."""
        with open(self.file(hour), "ab") as file:
            file.write(data)

    def round(self) -> dict[str, float]:
        """Run a round; return lines by outcome, without outcomes of 0."""
        out = {}
        for each in self.files.collect(NOW):
            assert isinstance(each, Measurement) and each.metric == "legato.agent.request_lines" and each.start_ns
            assert dict(each.attributes)["legato.engine.id"] == "e"
            out[dict(each.attributes)["legato.outcome"]] = each.value
        assert set(out) == {"taken", "bad", "dropped"}
        return {what: count for what, count in out.items() if count}

    @property
    def requests(self) -> list[FinishedRequest]:
        """Return the emitted requests."""
        return [request for each in self.emitted for request in each.finished]

    @property
    def ids(self) -> list[str]:
        """Return their ids."""
        return [request.response_id for request in self.requests]
