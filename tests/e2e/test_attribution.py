"""A recording through the benchmark: sent as OTLP, judged by the worker of `legato serve`, and read back.

The test does not use the recording's ground truth: parts must add up, and verdicts with less evidence must agree with the others.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KV = ROOT / "demo" / "recordings" / "kv"
COARSE = {"generation", "delivery", "unknown"}
MADE_LATE = {"scheduling", "kv_pressure", "host", "front_end", "generation"}


def verdicts(folder: pathlib.Path, *hide: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the benchmark's verdicts on the recording, by request and start of the gap."""
    out = folder / "verdicts.jsonl"
    hidden = [word for name in hide for word in ("--hide", name)]
    command = [sys.executable, str(ROOT / "bench" / "attribution.py"), str(KV), "--out", str(out), *hidden]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1])["verdicts"] > 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    found = {(row["id"], row["gap_start_ns"]): row for row in rows}
    assert len(found) == len(rows)
    for row in rows:
        assert sum(row["components_ns"].values()) == row["gap_end_ns"] - row["gap_start_ns"] >= 100_000_000
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """The verdicts with all vantages."""
    return verdicts(tmp_path_factory.mktemp("all"))


def test_a_run_under_kv_pressure_is_explained(known: dict[tuple[str, int], dict[str, Any]]) -> None:
    """The causes are prefill, preemption, host and front end, and none names a side only. A preempted stream has the longest stall."""
    causes = [row["cause"] for row in known.values()]
    assert {"scheduling", "kv_pressure", "host", "front_end"} <= set(causes) and not set(causes) & COARSE
    longest = max(known.values(), key=lambda row: int(row["gap_end_ns"] - row["gap_start_ns"]))
    assert longest["cause"] == "kv_pressure" and longest["components_ns"]["kv_pressure"] > 10_000_000_000


def test_without_the_server_the_verdicts_agree(known: dict[tuple[str, int], dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Chunks are matched with steps: nearly every stall is found, with the same cause."""
    less = verdicts(tmp_path, "server")
    alike = [less[key]["cause"] == row["cause"] for key, row in known.items() if key in less]
    assert len(alike) > 0.98 * len(known) and sum(alike) > 0.97 * len(alike)


def test_the_client_alone_does_not_contradict(known: dict[tuple[str, int], dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Its verdicts are generation, delivery or unknown, and rarely delivery for a chunk that was generated late."""
    alone = verdicts(tmp_path, "server", "engine")
    assert {row["cause"] for row in alone.values()} <= COARSE
    sides = [alone[key]["cause"] for key, row in known.items() if key in alone and row["cause"] in MADE_LATE]
    assert len(sides) > 700 and sides.count("delivery") <= 0.01 * len(sides) and sides.count("unknown") <= 0.05 * len(sides)
