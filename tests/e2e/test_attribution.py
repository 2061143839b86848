"""A recorded run through the bench: sent as OTLP, judged by the worker of `legato serve`, read back.

No truth here: the parts must add up, and what less evidence says must agree with what more of it says.
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
    """The bench's verdicts on the recording, by request and start of the gap."""
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
    """The verdicts with all that an observer may know."""
    return verdicts(tmp_path_factory.mktemp("all"))


def test_a_run_under_kv_pressure_is_explained(known: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Prefill, preemption and the host, nothing coarse; the longest stall is a preempted stream's."""
    causes = [row["cause"] for row in known.values()]
    assert {"scheduling", "kv_pressure", "host", "front_end"} <= set(causes) and not set(causes) & COARSE
    longest = max(known.values(), key=lambda row: int(row["gap_end_ns"] - row["gap_start_ns"]))
    assert longest["cause"] == "kv_pressure" and longest["components_ns"]["kv_pressure"] > 10_000_000_000


def test_without_the_server_the_same_is_said(known: dict[tuple[str, int], dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Tokens are matched to steps: nearly every stall is found and named alike."""
    less = verdicts(tmp_path, "server")
    alike = [less[key]["cause"] == row["cause"] for key, row in known.items() if key in less]
    assert len(alike) > 0.98 * len(known) and sum(alike) > 0.97 * len(alike)


def test_from_the_client_alone_nothing_is_said_against_it(known: dict[tuple[str, int], dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Generation, delivery or nothing; and hardly ever delivery for what was made late."""
    alone = verdicts(tmp_path, "server", "engine")
    assert {row["cause"] for row in alone.values()} <= COARSE
    sides = [alone[key]["cause"] for key, row in known.items() if key in alone and row["cause"] in MADE_LATE]
    assert len(sides) > 700 and sides.count("delivery") <= 0.01 * len(sides) and sides.count("unknown") <= 0.05 * len(sides)
