"""The oldest and the newest supported release of each client library: one stream each is recorded rightly.

The libraries of a generation are installed into a folder of `.build`, in front of the test environment's own packages. A folder is made
once for its pins. LiteLLM takes ten times as long as all others together to install and to import, so only `make fuzz` runs it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from captures.fake_llm import FakeLLM, Plan
from helpers.builders.batches import received_spans
from helpers.repo.repository import ROOT
from helpers.servers.receiver import receiver
from legato_ingest.otlp.batch import Limits

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEGATO_", "PYTEST_"))}
# The test environment has the newest `openai`, `httpx`, `aiohttp` and `requests`.
GOOGLE = ("google-auth==2.62.2", "pyasn1==0.6.5", "pyasn1_modules==0.4.2")
PINS = {
    "oldest": (
        *("openai==1.0.0", "anthropic==0.8.0", "httpx==0.25.2", "aiohttp==3.9.0", "requests==2.28.0", "google-genai==1.0.0"),
        *("ollama==0.1.4", "anyio==3.7.1", "charset-normalizer==2.0.12", "distro==1.9.0", "multidict==6.9.1", "tqdm==4.70.1"),
        *("urllib3==1.26.20", "websockets==14.2", *GOOGLE),
    ),
    "newest": (
        *("anthropic==2.12.0", "google-genai==3.4.0", "ollama==0.6.3", "distro==1.9.0", "docstring_parser==0.18.0", "tenacity==9.1.4"),
        *GOOGLE,
    ),
    "litellm": (
        *("litellm==1.106.2", "openai==2.54.0", "distro==1.9.0", "fastuuid==0.14.0", "filelock==3.32.7", "fsspec==2026.9.0"),
        *("huggingface_hub==1.33.0", "importlib_metadata==8.9.0", "Jinja2==3.1.6", "MarkupSafe==3.0.4", "regex==2026.11.15"),
        *("tiktoken==0.14.0", "tokenizers==0.23.3", "tqdm==4.70.1", "zipp==4.1.2"),
    ),
}
# A row of docs/reference.md: distribution, oldest and newest release.
TESTED = re.compile(r"^\| `([a-z-]+)` \| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)
CLIENTS = ("openai", "openai_async", "anthropic", "httpx", "aiohttp", "requests", "genai", "ollama")
ANTHROPIC, NONE, FULL = ("end_turn", 12, 5), ("stop", None, None), ("stop", 12, 5)
# Finish reason and usage by client, as the server sends the two, and the number of events with the beginning and the end of the response.
EXPECTED = {
    "openai": (*FULL, "openai", 9),
    "openai_async": (*FULL, "openai", 9),
    "anthropic": (*ANTHROPIC, "anthropic", 11),
    "httpx": (*ANTHROPIC, "anthropic", 11),
    "aiohttp": (*NONE, "openai", 8),
    "requests": (*NONE, "openai", 8),
    "genai": ("STOP", 12, 5, "gcp.gemini", 6),
    "ollama": (*FULL, "ollama", 6),
    "litellm": (*NONE, "openai", 8),
}


def installed(generation: str) -> pathlib.Path:
    """Return the folder with the libraries of a generation. Without a package index the test is skipped."""
    pins = PINS[generation]
    folder = ROOT / ".build" / "clients" / f"{generation}-{hashlib.sha256(' '.join(pins).encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{generation}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            options = (
                "--quiet",
                "--no-deps",
                "--no-compile",
                "--only-binary",
                ":all:",
                "--disable-pip-version-check",
                "--target",
                str(folder),
            )
            done = subprocess.run([sys.executable, "-m", "pip", "install", *options, *pins], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"the client libraries cannot be installed, is there a package index? {done.stderr[-300:]}")
            (folder / "complete").touch()
    return folder


@pytest.fixture
def server() -> Iterator[FakeLLM]:
    """A server of all dialects: five words, 10 ms apart."""
    made = FakeLLM()
    made.plan = Plan(chunks=5, gap_ms=10, stall_after=None)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def streamed(server: FakeLLM, folder: pathlib.Path, clients: tuple[str, ...]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the application with the libraries in a folder. Return what it printed and the rows of its streams."""
    environ = {**CLEAN, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT / "sdk"))), "PYTHONDONTWRITEBYTECODE": "1"}
    with receiver() as endpoint:
        command = [
            sys.executable,
            str(pathlib.Path(__file__).with_name("client_versions_application.py")),
            server.url,
            endpoint.url,
            *clients,
        ]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
        bodies = [ExportTraceServiceRequest.FromString(each.body) for each in endpoint.accepted if each.path == "/v1/traces"]
    assert done.returncode == 0, done.stderr
    batches = [received_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits()) for body in bodies]
    return json.loads(done.stdout), [row for batch in batches for row in batch.revs.to_pylist()]


@pytest.mark.parametrize(
    ("generation", "clients"), [("oldest", CLIENTS), ("newest", CLIENTS), pytest.param("litellm", ("litellm",), marks=pytest.mark.long)]
)
def test_one_stream_of_each_client(server: FakeLLM, generation: str, clients: tuple[str, ...]) -> None:
    """Chunks, TTFT, end, usage and id are those that the server sent; docs/reference.md has these versions."""
    printed, rows = streamed(server, installed(generation), clients)
    assert printed["failed"] == {} and printed["faults"] == 0
    truth = {each.model: each for each in server.truth}
    assert sorted(row["model"] for row in rows) == sorted(clients)
    for row in rows:
        true, name = truth[row["model"]], row["model"]
        found = (row["finish_reason"], row["input_tokens"], row["output_tokens"], row["provider"], row["chunks"])
        assert found == EXPECTED[name] and row["content_chunks"] == 5 and row["outcome"] == "complete", (name, found)
        assert row["response_id"] == ("" if name == "ollama" else true.response_id), name
        # The client began before the server did, and the row has what the client saw: not less than what the server measured.
        assert row["ttft_us"] >= (true.content_ns[0] - true.request_start_ns) // 1000 - 1_000, (name, row["ttft_us"])
    column = 0 if generation == "oldest" else 1
    documented = {name: versions[column] for name, *versions in TESTED.findall((ROOT / "docs" / "reference.md").read_text("utf-8"))}
    used = {"google-genai" if name == "genai" else name.removesuffix("_async") for name in clients}
    assert {name: printed["versions"][name] for name in used} == {name: documented[name] for name in used}
