"""The report on engines: the signals, hints and missing signals of each; sources from which a read removes data are not read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from helpers.repo.repository import ROOT
from helpers.servers.http_server import serve_get

RESPONSES = ROOT / "tests" / "gpu_agent" / "data" / "responses"
FINE = b'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.002",model_name="dummy"} 1.0\n'


def report(**environ: str) -> str:
    """Return the output of `legato-gpu-agent --once --print`."""
    own = {"LEGATO_PROC_PATH": "/proc", "LEGATO_ENGINE_SCAN": "0", "LEGATO_HOST_NAME": "node-7"}
    command = [sys.executable, "-m", "legato_gpu_agent", "--once", "--print"]
    run = subprocess.run(command, env={**os.environ, **own, **environ}, capture_output=True, text=True, timeout=120, check=False)
    assert run.stderr == "" and run.returncode == 0
    return run.stdout


def section_of(text: str, engine_id: str) -> str:
    """Return the lines on the metrics of one engine."""
    start = text.index(f"page {engine_id} ")
    lines = text[start:].splitlines()[1:]
    return "\n".join(line for line in lines[: next((n for n, line in enumerate(lines) if not line.startswith("      ")), len(lines))])


def test_each_engine_is_described_by_its_own_metrics() -> None:
    """The hint on finer buckets is given for the engine with coarse buckets only."""
    before, after = ((RESPONSES / name).read_bytes() for name in ("vllm_0.32.txt", "vllm_0.32_later.txt"))
    requested: Counter[str] = Counter()

    def answer(path: str) -> bytes:
        requested[path] += 1
        text_of_engine, fine = (after, FINE.replace(b"1.0", b"2.0")) if requested[path] > 1 else (before, FINE)
        first = text_of_engine.index(b"vllm:inter_token_latency_seconds_bucket")
        return text_of_engine[:first] + fine + text_of_engine[first:] if path.startswith("/fine") else text_of_engine

    with serve_get(answer) as url:
        text = report(LEGATO_ENGINES=f"fine={url}/fine,coarse={url}/coarse", LEGATO_ITERATIONS=f"trt={url}/iterations")
    assert "vLLM, engine id fine" in section_of(text, "fine") and "vLLM, engine id coarse" in section_of(text, "coarse")
    assert "hint:" in section_of(text, "coarse") and "hint:" not in section_of(text, "fine")
    assert text.count("not read: a read would remove the data that the running agent needs") == 2 and not any(
        "iterations" in path for path in requested
    )
