"""The demo as a user runs it: complete runs in real time, interrupts and failures."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from demo.recording import load
from helpers.servers.ports import free_port
from helpers.servers.serving import legato
from legato_ingest.cli.client import Reader

_PATIENCE_S = 300.0
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _temporary(data: pathlib.Path) -> pathlib.Path:
    return data / "tmp"


@contextlib.contextmanager
def _demo(data: pathlib.Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a demo on free ports and kill it at the end of the block, also when an assertion in the block fails."""
    # Two demos that start together would both find the default port free.
    ports = [text for option in ("--otlp-port", "--read-port", "--web-port") for text in (option, str(free_port()))]
    command = [sys.executable, "-m", "demo", "--data", str(data), *ports, *arguments]
    # A demo that is killed leaves its temporary files. As wide as without COLUMNS: pytest's own environment may name another width.
    _temporary(data).mkdir(exist_ok=True)
    environ = {**os.environ, "TMPDIR": str(_temporary(data)), "COLUMNS": "120"}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return the demo's output up to a line with ``words``. The demo is terminated after 300 s, which ends its output."""
    assert process.stdout is not None
    output = ""
    patience = threading.Timer(_PATIENCE_S, process.terminate)
    patience.start()
    try:
        for line in process.stdout:
            output += line
            if words in line:
                return output
    finally:
        patience.cancel()
    raise AssertionError(f"the demo did not print {words!r}, but: {output}")


def _processes(data: pathlib.Path) -> dict[str, int]:
    """Return the PIDs of the demo's children by name: `serve`, `agent`, `server`, `clients`. Each has its log in the demo's folder.

    `serve` has children with the same log, which start after it.
    """
    found: dict[str, int] = {}
    for folder in sorted(pathlib.Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name), reverse=True):
        try:
            log = pathlib.Path(os.readlink(folder / "fd" / "2"))
        except OSError:
            continue
        if log.parent == data:
            found[log.stem] = int(folder.name)
    return found


def test_the_demo_shows_what_was_recorded(tmp_path: pathlib.Path) -> None:
    """All streams of the first 20 s are stored with the recorded chunks, stalls have causes, and the report lists them.

    `bench/fidelity.py` runs the complete recording and measures how close the stored times are to the recorded ones.
    """
    recorded = load("kv").first(20)
    with _demo(tmp_path, "--once", "--no-past", "--seconds", "20") as process:
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    result = json.loads(output.splitlines()[-1])
    assert result["streams"] == result["server_streams"] == result["recorded_streams"] == len(recorded.streams) > 20
    assert result["streams_differ"] == 0
    assert result["chunks"] > result["gaps"] > 7_000
    assert result["recorded_stalls_250ms"] > 150 and result["stalls_250ms"] > 100
    assert 0 <= result["goodput"] < 0.2
    assert "legato report" in output and f"n={len(recorded.streams)}" in output
    # The engine's steps were stored: stalls have causes, and the prompts and preemptions behind them are listed.
    assert result["stalls_judged"] >= 100 and result["stalls_explained"] >= 0.97 * result["stalls_judged"]
    assert "legato blame" in output and "prompt tokens prefilled" in output and "preempted: chatcmpl-" in output
    # Texts are wrapped where the width of the numbers before them says.
    words = " ".join(output.split())
    assert "itself preempted" in words and "in full:" in words and "each within" in words
    assert _processes(tmp_path) == {}


def test_ctrl_c_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    """Interrupted in mid-stream, the demo ends its processes, removes its temporary files, prints that, and exits with status 130."""
    with _demo(tmp_path, "--recording", "calm") as process:
        _read_until(process, "replays calm")
        _wait_for(tmp_path, {"serve", "agent", "server", "clients"})
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped" in output
    assert _processes(tmp_path) == {}
    assert not list(_temporary(tmp_path).iterdir())


def test_killing_the_demo_ends_its_children(tmp_path: pathlib.Path) -> None:
    """After SIGKILL of the demo, its children end too."""
    with _demo(tmp_path, "--recording", "calm") as process:
        _read_until(process, "replays calm")
        _wait_for(tmp_path, {"serve", "agent", "server", "clients"})
        process.kill()
    _wait_for(tmp_path, set())


def test_a_store_that_dies_ends_the_demo_with_its_reason(tmp_path: pathlib.Path) -> None:
    """If one of its processes fails, the demo reports which one and ends the others."""
    with _demo(tmp_path, "--recording", "calm") as process:
        _read_until(process, "replays calm")
        os.kill(_processes(tmp_path)["serve"], signal.SIGKILL)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "serve ended with status -9" in output
    assert _processes(tmp_path) == {}


def _wait_for(data: pathlib.Path, names: set[str]) -> None:
    deadline = time.monotonic() + 20
    while (found := set(_processes(data))) != names:
        assert time.monotonic() < deadline, f"{found} run, not {names}"
        time.sleep(0.05)


def test_an_unknown_recording_is_one_line(tmp_path: pathlib.Path) -> None:
    """A misspelt option prints one line with the valid names, and no process is started."""
    with _demo(tmp_path, "--recording", "cv") as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output.startswith("demo: no recording cv: expected one of calm, kv, net")
    assert _processes(tmp_path) == {}


def test_an_incident_in_the_past_fires_the_burn_rate_rule_and_no_other(tmp_path: pathlib.Path) -> None:
    """After `make demo ARGS="--incident kv"`, each rule's SQL on the store: only one fires, and its cause and the rollups are correct.

    Without --once the store can be read after the report, `legato doctor` finds no fault in the demo, and a second demo on the same
    folder fails before it changes anything.
    """
    with _demo(tmp_path, "--incident", "kv", "--seconds", "2") as process:
        output = _read_until(process, "Ctrl-C ends all of it")
        read = re.search(r"answers queries at (http://\S+)", output)
        assert read is not None and "legato slo" in output and "dashboards push" in output
        assert "legato" in output and " stream " in output
        running = _processes(tmp_path)
        assert set(running) == {"serve", "agent", "server"}
        with _demo(tmp_path, "--once") as second:
            error, _ = second.communicate(timeout=30)
        assert second.returncode == 1
        assert "is in use by process" in " ".join(error.split())
        assert _processes(tmp_path) == running
        reader = Reader(read.group(1))
        firing = {
            path.stem: [row for row in reader.rows(path.read_text(encoding="utf-8")) if row["firing"]]
            for path in sorted((ROOT / "dashboards" / "alerts").glob("*.sql"))
        }
        newest = "stall_minutes FINAL WHERE minute > now() - INTERVAL 20 MINUTE"
        (blame,) = reader.rows(f"SELECT cause FROM {newest} GROUP BY cause ORDER BY sum(excess_us) DESC LIMIT 1")
        (minutes,) = reader.rows("SELECT sum(streams) AS streams FROM stream_minutes FINAL")
        (streams,) = reader.rows("SELECT count() AS streams FROM streams")
        otlp = re.search(r"accepts OTLP at (http://\S+)", output)
        assert otlp is not None
        doctor = legato("doctor", environ={"LEGATO_READ_URL": read.group(1), "LEGATO_ENDPOINT": otlp.group(1)})
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert _processes(tmp_path) == {}
    assert doctor.returncode == 0 and "0 faults, 0 warnings" in doctor.stdout, doctor.stdout
    assert len(firing) == 9 and [name for name, rows in firing.items() if rows] == ["itl_burn"]
    pages = {(row["service"], row["vantage"]): row for row in firing["itl_burn"] if row["severity"] == "page"}
    # The gateway's rows are the same streams.
    assert set(pages) == {("shop", "client")}
    assert pages["shop", "client"]["cause"] == "kv_pressure" and int(pages["shop", "client"]["users_bad"]) > 100
    assert blame["cause"] == "kv_pressure" and int(minutes["streams"]) == int(streams["streams"]) > 10_000
