"""The whole system at once: `legato serve` with an embedded store under a deployment that replays recordings in real time.

    python bench/sustain.py --engines 40 --seconds 120 demo/recordings/kv

Each engine repeats one of the recordings with other ids, with an agent that flushes its steps once a second, a server that sends its spans
once a second, and services of 10,000 end users. Attribution, rollups, self-monitoring and the rest of `legato serve` run as they do for
users. The senders run on the same cores.

`--streams-per-s` spreads the same load over more engines: each is idle between two rounds. `--history` fills the store with streams of the
last thirty days before. `--viewers` adds open dashboards, which refresh as often as their JSON says: `query_p50_ms`, `query_p99_ms`,
`page_p50_ms`, `page_p99_ms` (until the last panel's reply), and `queries_refused` by the limit of waiting ones.

Below ten streams a second and without viewers nothing is queried until the load ends, as at night: `legato serve` then inserts less often.
The verdict delay of such a run is the time from a stream's end until the run of the attribution that judged it began.

Last line: one JSON object with `streams_per_s`, `chunks_per_s`, `steps_per_s`, `cpu_cores` (of serve and its children), `rss_mb` (of them,
at the end), `ack_p99_ms`, `verdict_delay_p99_s` (from a stream's end until its verdict can be queried), `rollup_lag_p99_s`, `lost_streams`,
and `stale_verdicts`: the share of stalls of more than 60 s ago without a verdict, or with one that lacks evidence which is in the store.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, median, quantile  # noqa: E402
from bench.common.store_fill import fill_history  # noqa: E402
from bench.sustain_load.deployment import EngineReplay, Template, templates  # noqa: E402
from bench.sustain_load.reading import Answered, Reading  # noqa: E402
from bench.sustain_load.sending import Sending  # noqa: E402
from bench.sustain_load.watching import Observed, Watching, query  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402

# Under a lighter load the watching itself would be most of the work.
_LIGHT_STREAMS_PER_S = 10.0
# A stream of an engine without recorded steps lacks them for ever. The times have the type of the column: by the primary key, ClickHouse
# leaves out rows of the same second where a DateTime64 is compared with `> DateTime`.
_STALE = """
WITH
    old AS
    (
        SELECT trace_id, span_id, start_time, stalls_250ms FROM streams
        WHERE vantage = 'client' AND stalls_250ms > 0 AND addNanoseconds(start_time, duration_ns) < now() - INTERVAL 60 SECOND
            AND start_time > fromUnixTimestamp64Nano({begin}000000000)
    ),
    engines AS
    (
        SELECT trace_id, max(engine_id IN (SELECT engine_id FROM engine_steps)) AS has_steps, 1 AS has_server FROM streams
        WHERE vantage = 'server' AND start_time > fromUnixTimestamp64Nano({begin}000000000)
        GROUP BY trace_id
    ),
    judged AS
    (
        SELECT
            trace_id, span_id, count() AS verdicts,
            countIf(has(missing, 'engine') AND has_steps OR has(missing, 'server') AND has_server) AS lacking
        FROM verdicts FINAL
        LEFT JOIN engines USING (trace_id)
        WHERE start_time > fromUnixTimestamp64Nano({begin}000000000) AND cause != '' GROUP BY trace_id, span_id
    )
SELECT
    toUInt32(ifNull(sum(stalls_250ms), 0)) AS stalls,
    toUInt32(ifNull(sum(greatest(stalls_250ms - ifNull(verdicts, 0), 0)), 0)) AS unjudged,
    toUInt32(ifNull(sum(ifNull(lacking, 0)), 0)) AS lacking
FROM old LEFT JOIN judged USING (trace_id, span_id)
FORMAT JSONEachRow"""
_SWEEPS = """
SELECT quantile(0.5)(seconds) AS half, quantile(0.99)(seconds) AS most, avg(streams) AS streams
FROM attribution_runs WHERE ran_at > fromUnixTimestamp({begin}) FORMAT JSONEachRow"""
_DELAYS = """
SELECT toString(quantile(0.5)(delay_ms) / 1000) AS half, toString(quantile(0.99)(delay_ms) / 1000) AS most
FROM
(
    SELECT toUnixTimestamp64Milli(min(judged_at)) - intDiv(toUnixTimestamp64Nano(any(start_time)) + any(duration_ns), 1000000) AS delay_ms
    FROM verdicts
    INNER JOIN streams USING (tenant, trace_id, span_id, start_time)
    WHERE start_time > fromUnixTimestamp64Nano({begin}000000000) AND vantage = 'client' AND stalls_250ms > 0
    GROUP BY trace_id, span_id
)
FORMAT JSONEachRow"""
_STORED = """
SELECT count() AS streams FROM streams
WHERE vantage = 'client' AND received_at > fromUnixTimestamp64Milli({begin}000)
FORMAT JSONEachRow"""


def main() -> None:
    """Run the load and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engines", type=int, default=40)
    options.add_argument("--seconds", type=float, default=120)
    options.add_argument("--streams-per-s", type=float, help="of all engines together; default: no engine is ever idle")
    options.add_argument("--history", type=int, default=0, metavar="STREAMS", help="streams that are in the store before")
    options.add_argument("--viewers", type=int, default=0, metavar="N", help="open dashboards, one for each viewer")
    options.add_argument("recordings", nargs="*", default=["kv"], help="names in demo/recordings, or folders")
    given = options.parse_args()
    recorded = [each for name in given.recordings for each in templates(name)]
    with tempfile.TemporaryDirectory() as folder, _serving(pathlib.Path(folder) / "store", given.history) as served:
        begin_ns = time.time_ns()
        engines = _engines(given.engines, recorded, begin_ns, given.streams_per_s)
        is_light = sum(engine.streams_per_s for engine in engines) < _LIGHT_STREAMS_PER_S
        sending = Sending(served.otlp, engines, given.seconds)
        watching = Watching(served.process.pid, served.otlp, served.read, sending, is_light, bool(given.viewers) or not is_light)
        reading = Reading(served.read, ROOT / "dashboards", given.viewers)
        watching.start()
        reading.start()
        sending.run()
        seconds = time.time() - begin_ns / 1e9
        answered, seen = reading.stop(), watching.stop()
        figures = {**_figures(served, sending, seen, seconds, begin_ns // 10**9), **_of_viewers(answered)}
    print(describe("chdb", "numpy", "pyarrow", "protobuf"))
    print(
        f"{given.engines} engines, {seconds:.0f} s, {len(seen.verdict_delay_s)} probes, {seen.unjudged} without a verdict after 2 minutes;"
    )
    print(f"acknowledgements: n={len(sending.done.seconds)}, median {1000 * median(sending.done.seconds):.0f} ms; ", end="")
    print(f"{sending.done.refused} refused for now, {sending.done.failed} failed; the sender was up to {sending.late_s_max:.1f} s late")
    print(json.dumps(figures))


@contextlib.contextmanager
def _serving(store: pathlib.Path, history: int) -> Iterator[Served]:
    """Run `legato serve` with a store that has so many streams."""
    if history:
        # In a process that ends, because it needs memory, and the engine stays in it.
        filling = multiprocessing.get_context("spawn").Process(target=fill_history, args=(store, history))
        filling.start()
        filling.join()
        if filling.exitcode:
            sys.exit("the store could not be filled")
    with serve_process(store) as served:
        yield served


def _engines(count: int, recorded: Sequence[Template], begin_ns: int, streams_per_s: float | None) -> list[EngineReplay]:
    """Return the engines; they are idle for such a share of the time that all together have this number of streams per second."""
    own = [recorded[number % len(recorded)] for number in range(count)]
    most = sum(1e6 * len(each.streams) / each.length_us for each in own)
    if streams_per_s and streams_per_s > most:
        sys.exit(f"{count} engines have {most:.1f} streams/s at most; --streams-per-s is {streams_per_s:g}: give more engines")
    longer = most / streams_per_s if streams_per_s else 1.0
    return [EngineReplay(number, each, begin_ns, int(longer * each.length_us)) for number, each in enumerate(own)]


def _figures(served: Served, sending: Sending, seen: Observed, seconds: float, begin_s: int) -> dict[str, float]:
    done = sending.done
    ((stored,), (stale,)) = query(served.read, _STORED.format(begin=begin_s)), query(served.read, _STALE.format(begin=begin_s))
    (sweeps,) = query(served.read, _SWEEPS.format(begin=begin_s))
    missing, delays_s = done.streams - int(str(stored["streams"])), seen.verdict_delay_s
    if delays_s:
        delay_p50_s, delay_p99_s = median(delays_s), quantile(delays_s, 0.99)
    else:
        (judged,) = query(served.read, _DELAYS.format(begin=begin_s))
        delay_p50_s, delay_p99_s = float(str(judged["half"])), float(str(judged["most"]))
    stalls = int(str(stale["stalls"])) or 1
    return {
        "streams_per_s": round(done.streams / seconds, 1),
        "chunks_per_s": round(done.chunks / seconds),
        "steps_per_s": round(done.steps / seconds),
        "cpu_cores": round(sum(seen.cores) / len(seen.cores), 3),
        "rss_mb": round(seen.rss_mb[-1]),
        "rss_mb_half": round(seen.rss_mb[len(seen.rss_mb) // 2]),
        "ack_p50_ms": round(1000 * median(done.seconds)),
        "ack_p99_ms": round(1000 * quantile(done.seconds, 0.99)),
        "verdict_delay_p50_s": round(delay_p50_s, 1),
        "verdict_delay_p99_s": round(delay_p99_s, 1),
        "rollup_lag_p99_s": round(quantile(seen.rollup_lag_s, 0.99), 1),
        "sweep_p50_s": round(float(str(sweeps["half"])), 1),
        "sweep_p99_s": round(float(str(sweeps["most"])), 1),
        "streams_per_sweep": round(float(str(sweeps["streams"]))),
        "attribution_lag_p99_s": round(quantile(seen.attribution_lag_s, 0.99), 1),
        "stale_verdicts": round((int(str(stale["unjudged"])) + int(str(stale["lacking"]))) / stalls, 4),
        "unjudged_share": round(int(str(stale["unjudged"])) / stalls, 4),
        "lost_streams": missing,
        "n_stalls": stalls,
    }


def _of_viewers(answered: Answered) -> dict[str, float]:
    if not answered.query_s:
        return {}
    return {
        "query_p50_ms": round(1000 * median(answered.query_s)),
        "query_p99_ms": round(1000 * quantile(answered.query_s, 0.99)),
        "page_p50_ms": round(1000 * median(answered.page_s)),
        "page_p99_ms": round(1000 * quantile(answered.page_s, 0.99)),
        "n_queries": len(answered.query_s),
        "n_pages": len(answered.page_s),
        "queries_refused": answered.refused,
        "queries_failed": answered.failed,
    }


if __name__ == "__main__":
    main()
