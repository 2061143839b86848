"""Time from a fresh clone, with `make demo`, until the report is printed. Limit: 180 s.

The bench follows the README in a new folder without a `.venv` and times all of it: the virtual environment, the installation from pip's
cache, the replay in real time, the report. Uncommitted files are not cloned; `--with-uncommitted` copies them.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.common.machine import describe  # noqa: E402

__all__ = ["main"]


def _clone(folder: pathlib.Path, with_uncommitted: bool) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    if with_uncommitted:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)


def _demo(folder: pathlib.Path, arguments: str) -> tuple[dict[str, float], float, float]:
    """The demo's last line, and the seconds until it first spoke and until it ended."""
    environ = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS")}
    started = time.monotonic()
    process = subprocess.Popen(["make", "demo", f"ARGS={arguments}"], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    installed, last = 0.0, ""
    for line in process.stdout:
        if not installed and "legato serve" in line:
            installed = time.monotonic() - started
        print(f"  {line}", end="")
        last = line.strip() or last
    if process.wait():
        raise SystemExit(f"make demo ended with status {process.returncode}")
    return json.loads(last), installed, time.monotonic() - started


def main() -> None:
    """Clone, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--args", default="--once", help="arguments of the demo; --once must be among them")
    parser.add_argument("--with-uncommitted", action="store_true", help="copy what is not committed into the clone")
    options = parser.parse_args()
    print(describe("pip"))
    with tempfile.TemporaryDirectory(prefix="legato-first-chart-") as folder:
        clone = pathlib.Path(folder) / "legato"
        started = time.monotonic()
        _clone(clone, options.with_uncommitted)
        cloned = time.monotonic() - started
        result, installed, seconds = _demo(clone, options.args)
    print(f"n = 1 run; clone {cloned:.1f} s, installed and serving after {installed:.1f} s, report after {seconds:.1f} s; bar 180 s")
    print(json.dumps({"seconds": round(cloned + seconds, 1), "install_seconds": round(installed, 1), "streams": result["streams"]}))


if __name__ == "__main__":
    main()
