"""What a person reads of engines: each one's own signals, hints and losses; and nothing is taken from a source that forgets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from helpers.repo.repository import ROOT
from helpers.servers.answering import answering_get

PAGES = ROOT / "tests" / "gpu_agent" / "data" / "pages"
FINE = b'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.002",model_name="dummy"} 1.0\n'


def look(**environ: str) -> str:
    """What `legato-gpu-agent --once --print` says."""
    own = {"LEGATO_PROC_PATH": "/proc", "LEGATO_ENGINE_SCAN": "0", "LEGATO_HOST_NAME": "node-7"}
    command = [sys.executable, "-m", "legato_gpu_agent", "--once", "--print"]
    run = subprocess.run(command, env={**os.environ, **own, **environ}, capture_output=True, text=True, timeout=120, check=False)
    assert run.stderr == "" and run.returncode == 0
    return run.stdout


def told_of(said: str, engine_id: str) -> str:
    """The lines of one engine's page."""
    start = said.index(f"page {engine_id} ")
    lines = said[start:].splitlines()[1:]
    return "\n".join(line for line in lines[: next((n for n, line in enumerate(lines) if not line.startswith("      ")), len(lines))])


def test_each_engine_is_told_by_its_own_page() -> None:
    """The hint to ask for finer buckets is given to the engine whose buckets are coarse, whatever another one has."""
    before, after = ((PAGES / name).read_bytes() for name in ("vllm_0.32.txt", "vllm_0.32_later.txt"))
    asked: Counter[str] = Counter()

    def answer(path: str) -> bytes:
        asked[path] += 1
        page, fine = (after, FINE.replace(b"1.0", b"2.0")) if asked[path] > 1 else (before, FINE)
        first = page.index(b"vllm:inter_token_latency_seconds_bucket")
        return page[:first] + fine + page[first:] if path.startswith("/fine") else page

    with answering_get(answer) as url:
        said = look(LEGATO_ENGINES=f"fine={url}/fine,coarse={url}/coarse", LEGATO_ITERATIONS=f"trt={url}/iterations")
    assert "vLLM, engine id fine" in told_of(said, "fine") and "vLLM, engine id coarse" in told_of(said, "coarse")
    assert "hint:" in told_of(said, "coarse") and "hint:" not in told_of(said, "fine")
    assert said.count("not asked: what is read there is gone for the agent that runs") == 2 and not any(
        "iterations" in path for path in asked
    )
