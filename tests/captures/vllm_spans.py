"""Run a real vLLM, read streams from it, and write the request spans that it exports as test data.

`PYTHONPATH=tests python -m captures.vllm_spans --vllm VENV --model FOLDER`. The virtual environment has vLLM (a build for CPUs is enough)
and the OTLP exporter; the folder has any model, of which only the configuration and the tokenizer are used. The truth is the client's:
times of its reads, and the usage that vLLM sent. Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pathlib
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from captures.sink import Received, Sink

DATA = pathlib.Path(__file__).parents[1] / "data" / "emitters"
MODEL = "dummy"
# Tokens that each scenario asks for, and after how many events with content the client leaves.
SCENARIOS: dict[str, tuple[int, int | None]] = {"plain": (40, None), "break": (400, 12)}
START_S_MAX = 600
SPAN_S_MAX = 30


@contextmanager
def engine(venv: pathlib.Path, model: pathlib.Path, sink: Sink, port: int) -> Iterator[None]:
    """Run vLLM until it answers, with traces to the sink."""
    command = [
        venv / "bin" / "vllm", "serve", model, "--served-model-name", MODEL, "--load-format", "dummy", "--enforce-eager",
        "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024",
        "--block-size", "32", "--max-num-seqs", "4", "--otlp-traces-endpoint", f"{sink.url}/v1/traces",
    ]  # fmt: skip
    environ = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": "capture",
    }  # fmt: skip
    process = subprocess.Popen(list(map(str, command)), env=environ, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + START_S_MAX
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < deadline, "vLLM did not start"
            time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def read(port: int, scenario: str) -> dict[str, Any]:
    """Read one response and return the truth about it, as in the other captures; times are ns since the epoch."""
    tokens, leave_after = SCENARIOS[scenario]
    trace = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens, "ignore_eos": True}
    if scenario != "whole":
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    truth: dict[str, Any] = {
        "model": MODEL,
        "api": "chat",
        "request_start_ns": time.time_ns(),
        "role_ns": 0,
        "content_ns": [],
        "finish": None,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json", "traceparent": trace})
    response = connection.getresponse()
    truth |= {
        "headers_ns": time.time_ns(),
        "finish": None,
        "input_tokens": None,
        "output_tokens": None,
        "traceparent": trace,
        "outcome": "complete",
    }
    for line in response:
        text = line.decode().removeprefix("data: ").strip()
        if text.startswith("{"):
            _note(truth, json.loads(text))
        if leave_after is not None and len(truth["content_ns"]) >= leave_after:
            truth["outcome"] = "client_closed"
            break
    response.close()
    connection.close()
    return {**truth, "end_ns": time.time_ns()}


def _note(truth: dict[str, Any], event: dict[str, Any]) -> None:
    now_ns = time.time_ns()
    truth["response_id"] = event["id"]
    for choice in event["choices"]:
        if choice["delta"].get("content"):
            truth["content_ns"].append(now_ns)
        elif choice["delta"].get("role"):
            truth["role_ns"] = now_ns
        truth["finish"] = choice["finish_reason"] or truth["finish"]
    if event.get("usage"):
        truth |= {"input_tokens": event["usage"]["prompt_tokens"], "output_tokens": event["usage"]["completion_tokens"]}


def _exported(sink: Sink, since: int) -> list[Received]:
    """Wait for the span of a request and return what has arrived since ``since`` requests."""
    deadline = time.monotonic() + SPAN_S_MAX
    while not any(b"llm_request" in each.body for each in sink.received[since:]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return sink.received[since:]


def main() -> None:
    """Write one file a scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--port", type=int, default=8397)
    parser.add_argument("--out", type=pathlib.Path, default=DATA)
    arguments = parser.parse_args()
    code = "import vllm; print(vllm.__version__)"
    version = subprocess.run([arguments.vllm / "bin" / "python", "-c", code], check=True, capture_output=True, text=True).stdout.split()[-1]
    sink = Sink()
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    with engine(arguments.vllm, arguments.model, sink, arguments.port):
        read(arguments.port, "plain")
        _exported(sink, 0)
        time.sleep(10)
        for scenario in SCENARIOS:
            since = len(sink.received)
            truth = read(arguments.port, scenario)
            requests = [each.as_json() for each in _exported(sink, since)]
            if not requests:
                print(f"{scenario}: {truth['outcome']}; nothing was exported, no file is written")
                continue
            held = {"emitter": "vllm", "packages": {"vllm": version}, "language": "python", "scenario": scenario, "truth": [truth]}
            path = arguments.out / f"vllm-{scenario}.json"
            path.write_text(json.dumps({**held, "requests": requests}, indent=1) + "\n", encoding="utf-8")
            print(f"{path.name}: {path.stat().st_size} B; {truth['outcome']}; {len(requests)} requests")


if __name__ == "__main__":
    main()
