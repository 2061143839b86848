"""One sender in trouble beside others: what it costs `legato serve`, and what the others notice.

    python bench/overload.py [SCENARIO...]

Ten engines replay a recording in real time (`sustain_load`). After 20 s something happens, and for another minute and a half the script
watches the ten engines' acknowledgements and verdicts, and the memory of `serve`. Scenarios: `load` (450 streams a second for a minute,
three times the floor of `sustain.py`), `steps` (an agent that was cut off sends a million steps of one engine in four requests), `engines`
(10,000 engines that send one stream each within ten seconds), `stalls` (one stream of 65,536 chunks with 10,000 stalls), `clocks` (ten
engines and their servers an hour ahead, ten an hour behind). Each has a separate store. Last line: one JSON object by scenario.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, median, quantile  # noqa: E402
from bench.sustain_load.deployment import EngineReplay, Template, templates  # noqa: E402
from bench.sustain_load.hostile import many_engines, many_stalls, many_steps, post  # noqa: E402
from bench.sustain_load.sending import Sending  # noqa: E402
from bench.sustain_load.watching import Watching  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402

_ENGINES, _BEFORE_S, _AFTER_S, _LOAD_S = 10, 20.0, 90.0, 60.0
_HOUR_NS = 3_600_000_000_000
_LOAD_STREAMS_PER_S = 450.0
_BODIES = {"steps": many_steps, "engines": many_engines, "stalls": many_stalls}
_SCENARIOS = ("load", *_BODIES, "clocks")


def main() -> None:
    """Run the scenarios and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recording", default="kv", help="a name in demo/recordings, or a folder")
    options.add_argument("scenarios", nargs="*", help=f"of {', '.join(_SCENARIOS)}; default: all of them")
    given = options.parse_args()
    if unknown := set(given.scenarios).difference(_SCENARIOS):
        options.error(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(_SCENARIOS)}")
    played = templates(given.recording)[0]
    figures = {}
    for scenario in given.scenarios or _SCENARIOS:
        with tempfile.TemporaryDirectory() as folder, serve_process(pathlib.Path(folder) / "store") as served:
            figures[scenario] = _run(scenario, served, played)
        print(scenario, json.dumps(figures[scenario]), flush=True)
    print(describe("chdb", "numpy", "pyarrow", "protobuf"))
    print(json.dumps(figures))


def _run(scenario: str, served: Served, played: Template) -> dict[str, float]:
    begin_ns = time.time_ns()
    neighbours = [EngineReplay(number, played, begin_ns, 0) for number in range(_ENGINES)]
    sending = Sending(served.otlp, neighbours, _BEFORE_S + _AFTER_S)
    watching = Watching(served.process.pid, served.otlp, served.read, sending)
    watching.start()
    sent: list[tuple[float, int]] = []
    trouble = threading.Timer(_BEFORE_S, lambda: sent.extend(_trouble(scenario, served, played)))
    trouble.start()
    sending.run()
    trouble.join()
    seen = watching.stop()
    before = [lag for lag in seen.attribution_lag_s[: int(_BEFORE_S)] if lag == lag]
    usual_s = 2 * max(before, default=10.0)
    behind = [second for second, lag in enumerate(seen.attribution_lag_s) if lag > usual_s]
    return {
        "streams_per_s": round(sending.done.streams / (_BEFORE_S + _AFTER_S), 1),
        "ack_p50_ms": round(1000 * median(sending.done.seconds)),
        "ack_p99_ms": round(1000 * quantile(sending.done.seconds, 0.99)),
        "ack_max_ms": round(1000 * max(sending.done.seconds)),
        "failed": sending.done.failed,
        "refused": sending.done.refused,
        "verdict_delay_p50_s": round(median(seen.verdict_delay_s), 1),
        "verdict_delay_p99_s": round(quantile(seen.verdict_delay_s, 0.99), 1),
        "n_verdicts": len(seen.verdict_delay_s),
        "rss_max_mb": round(max(seen.rss_mb)),
        "rss_end_mb": round(seen.rss_mb[-1]),
        "lag_max_s": round(max(lag for lag in seen.attribution_lag_s if lag == lag), 1),
        "behind_until_s": max(behind, default=0),
        "trouble_ack_max_s": round(max((seconds for seconds, _ in sent), default=0.0), 1),
        "trouble_refused": sum(refused for _, refused in sent),
    }


def _trouble(scenario: str, served: Served, played: Template) -> list[tuple[float, int]]:
    """Let it happen. Return the seconds until each acknowledgement, and how often each request was refused for now."""
    now_ns = time.time_ns()
    if scenario in _BODIES:
        return [post(served.otlp, body) for body in _BODIES[scenario](now_ns)]
    if scenario == "clocks":
        engines = [
            EngineReplay(1_000 + number, played, now_ns, 0, off_ns=_HOUR_NS if number % 2 else -_HOUR_NS) for number in range(2 * _ENGINES)
        ]
    else:
        rate = 1e6 * len(played.streams) / played.length_us
        engines = [EngineReplay(1_000 + number, played, now_ns, 0) for number in range(int(_LOAD_STREAMS_PER_S / rate))]
    sending = Sending(served.otlp, engines, _LOAD_S)
    sending.run()
    return [(max(sending.done.seconds, default=0.0), sending.done.refused)]


if __name__ == "__main__":
    main()
