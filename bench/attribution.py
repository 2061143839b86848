"""Attribute the stalls of a recording, from the files that an observer would have.

    python bench/attribution.py RECORDING --out VERDICTS.jsonl [--hide client|server|engine] [--scrapes-only] [--gap-ms 100 --excess-ms 50]

The script sends the recording's clients, servers, engine steps and node samples (scrapes, host counters, server sockets) as OTLP to a new
`legato serve`, the steps with the agent's own encoder. The worker judges them, and the script writes the verdicts, one per line.

`--hide engine` leaves out steps, scrapes and host counters; `--hide server` leaves out the middleware and the sockets; `--hide client`
leaves out the clients, so that the servers' own gaps are judged. Several may be given.
`--scrapes-only` leaves out the steps, and reports the same host for middleware and agent; otherwise the files share no clock. The script
opens no `truth_*` file and not `run.json`. A missing file counts as hidden. Sizes are unknown, so chunks are matched by their index.

The last line is a JSON object: `gaps_per_s` (charging gaps only, on one core), `verdicts`, `streams`, `n_gaps`.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import json
import os
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe  # noqa: E402
from bench.common.recordings import RecordedStream, load  # noqa: E402
from bench.node_samples import HOST, engine_samples, lines, socket_samples  # noqa: E402
from helpers.builders.spans import native_span, request  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402
from legato._timeline import pack  # noqa: E402
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request  # noqa: E402

ROLE, TEXT, USAGE, DONE = 0, 1, 4, 7
FLUSH_STEPS = 200
DONE_BYTES = 14
PATIENCE_S = 60


def trace_of(ident: str) -> bytes:
    """Return the trace id of a client's request id."""
    return hashlib.blake2b(ident.encode(), digest_size=16).digest()


def send(served: Served, content: bytes, path: str = "/v1/traces") -> None:
    """Post a body until it is acknowledged completely."""
    while True:
        reply = httpx.post(f"{served.otlp}{path}", content=content, headers={"Content-Type": "application/x-protobuf"}, timeout=120)
        if reply.status_code == 200 and not reply.content:
            return
        if reply.status_code not in (429, 503):
            raise SystemExit(f"the recording was not accepted: {reply.status_code} {reply.content[:300]!r}")
        time.sleep(0.2)


def send_samples(served: Served, bodies: Iterator[tuple[bytes, int]]) -> int:
    """Send node samples, and return their number."""
    count = 0
    for content, points in bodies:
        send(served, content, "/v1/metrics")
        count += points
    return count


def send_streams(served: Served, streams: Iterator[tuple[str, int, int, str, bytes, str, str]], clock: str = "") -> int:
    """Send spans in requests of 300, and return their number. A stream is (id, start ns, end µs, vantage, timeline, outcome, engine id)."""
    rng, count = random.Random(), 0
    body = request({"service.name": "recording"})
    for ident, start_ns, end_us, vantage, timeline, outcome, engine_id in streams:
        attributes = {
            "legato.stream.vantage": vantage,
            "legato.stream.timeline": timeline,
            "legato.stream.outcome": outcome,
            "legato.engine.id": engine_id,
            "gen_ai.response.id": f"chatcmpl-{ident}",
            **({"legato.stream.clock": clock} if clock else {}),
        }
        native_span(body, attributes, trace_id=trace_of(ident), start_ns=start_ns, duration_ns=end_us * 1000, rng=rng)
        count += 1
        if count % 300 == 0:
            send(served, body.SerializeToString())
            body = request({"service.name": "recording"})
    send(served, body.SerializeToString())
    return count


def clients(folder: pathlib.Path) -> Iterator[tuple[str, int, int, str, bytes, str, str]]:
    """Yield the clients' streams."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for sample in lines(folder, "tcpinfo"):
        if sample["side"] == "client":
            samples.setdefault(sample["id"], []).append(sample)
    for stream in load(folder):
        kinds = [kind for _, _, kind in stream.chunks]
        timeline = pack([at for at, _, _ in stream.chunks], None, None, kinds, None, sockets_of(stream, samples.get(stream.name, [])))
        yield stream.name, stream.start_ns, end_of(stream), "client", timeline, stream.outcome, ""


def sockets_of(stream: RecordedStream, samples: list[dict[str, Any]]) -> dict[int, list[int]] | None:
    """Return the socket columns of a timeline. A sample belongs to the first read after it."""
    if not samples:
        return None
    times = [at for at, _, _ in stream.chunks]
    columns = {number: [0] * len(times) for number in (10, 11, 12)}
    for sample in samples:
        place = bisect.bisect_left(times, (sample["t_ns"] - stream.start_ns) // 1000)
        if place < len(times):
            for number, name in ((10, "inq"), (11, "rcv_wnd"), (12, "last_data_recv_ms")):
                columns[number][place] = int(sample[name]) + 1
    return columns


def end_of(stream: RecordedStream) -> int:
    """Return the end of a stream, in µs since its start: not before its last chunk."""
    return max(stream.end_us, stream.chunks[-1][0])


def servers(folder: pathlib.Path) -> Iterator[tuple[str, int, int, str, bytes, str, str]]:
    """Yield the same streams at the server's middleware. The first send opens a stream; the last two close it if it ended."""
    for path in sorted(folder.glob("server*.jsonl.gz")):
        suffix = path.name.removeprefix("server").removesuffix(".jsonl.gz")
        for record in lines(folder, f"server{suffix}"):
            sends = record["sends"]
            if not sends:
                continue
            ended = sends[-1][1] == DONE_BYTES
            kinds = [ROLE, *[TEXT] * (len(sends) - 1)]
            if ended and len(sends) > 2:
                kinds[-2:] = [USAGE, DONE]
            timeline = pack([at for at, _ in sends], None, None, kinds)
            outcome = "complete" if ended else "client_cancel"
            yield record["id"], record["t0_ns"], sends[-1][0], "server", timeline, outcome, f"engine{suffix}"


def send_steps(served: Served, folder: pathlib.Path) -> int:
    """Send the engines' steps with the agent's encoder, and return their number."""
    count = 0
    for path in sorted(folder.glob("steps*.jsonl.gz")):
        suffix = path.name.removeprefix("steps").removesuffix(".jsonl.gz")
        records = list(lines(folder, f"steps{suffix}"))
        epoch = next((record["t_ns"] for record in records if record["ev"] == "init"), 0)
        engine, steps = Engine(f"engine{suffix}", epoch), [record for record in records if record["ev"] == "step"]
        for at in range(0, len(steps), FLUSH_STEPS):
            flush = steps[at : at + FLUSH_STEPS]
            finished = [finished_of(record, each) for record in flush for each in record.get("fin", [])]
            send(served, steps_request(engine, [step_of(record) for record in flush], finished).SerializeToString())
            count += len(flush)
    return count


def step_of(record: dict[str, Any]) -> Step:
    """Return a recorded step as the plugin passes it to the agent."""
    work, intervals, spec = record.get("it") or {}, record.get("itl") or [], record.get("spec") or {}
    return Step(
        number=record["n"],
        recorded_ns=record["t_ns"],
        interval_us=round(min(intervals) * 1e6) if intervals else None,
        interval_max_us=round(max(intervals) * 1e6) if intervals else None,
        running=record.get("run"),
        waiting=record["wait"] + record.get("defer", 0) if "wait" in record else None,
        prefill_requests=work.get("ctx_reqs"),
        prefill_tokens=work.get("ctx_toks"),
        decode_requests=work.get("gen_reqs"),
        decode_tokens=work.get("gen_toks"),
        draft_tokens=spec.get("draft_toks"),
        accepted_tokens=spec.get("acc"),
        elapsed_us=round(work["ms"] * 1000) if "ms" in work else None,
        kv_used_ppm=round(record["kv"] * 1e6) if "kv" in record else None,
        preempted=record.get("preempted"),
    )


def finished_of(record: dict[str, Any], each: dict[str, Any]) -> FinishedRequest:
    """Return a recorded end of a request."""
    return FinishedRequest(
        step=record["n"],
        response_id=each["id"],
        reason=each.get("reason", ""),
        preemptions=each.get("preempt", 0),
        prompt_tokens=each.get("prompt", 0),
        output_tokens=each.get("gen", 0),
        queued_us=round(each.get("queued", 0) * 1e6),
        prefill_us=round(each.get("prefill", 0) * 1e6),
        decode_us=round(each.get("decode", 0) * 1e6),
    )


def rows(served: Served, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query through the read endpoint."""
    reply = httpx.post(served.read, content=f"{sql} FORMAT JSONEachRow", timeout=120)
    reply.raise_for_status()
    return [json.loads(line) for line in reply.text.splitlines()]


def verdicts(served: Served, names: dict[str, str], sent: int) -> list[dict[str, Any]]:
    """Return the verdicts in the scorer's format, once the worker has judged all streams that were ``sent``."""
    stored = "SELECT uniqExact(trace_id, span_id) AS n, toUnixTimestamp64Milli(max(received_at)) AS t FROM stream_revs"
    swept = "SELECT toUnixTimestamp64Milli(max(until)) AS t FROM attribution_runs"
    until = time.monotonic() + PATIENCE_S
    # On a busy machine a query may be answered before what was acknowledged is inserted.
    while True:
        (found,) = rows(served, stored)
        if int(found["n"]) >= sent and int(found["t"]) <= int(rows(served, swept)[0]["t"]):
            break
        if time.monotonic() > until:
            raise SystemExit(f"the worker did not judge within {PATIENCE_S} s")
        time.sleep(0.2)
    judged = rows(
        served,
        "SELECT lower(hex(trace_id)) AS trace, toUnixTimestamp64Nano(start_time) + 1000 * gap_start_us AS start, 1000 * gap_us AS gap,"
        " cause, confidence, parts FROM verdicts FINAL WHERE cause != 'base' ORDER BY start, trace",
    )
    return [
        {
            "id": names[row["trace"]],
            "gap_start_ns": int(row["start"]),
            "gap_end_ns": int(row["start"]) + int(row["gap"]),
            "cause": row["cause"],
            "confidence": row["confidence"],
            "components_ns": {name: int(ns) for name, ns in row["parts"].items()},
        }
        for row in judged
    ]


def gaps_per_s(repeats: int = 5) -> tuple[float, int]:
    """Return the speed of charging 100,000 gaps over an hour of steps (the median of some runs), and the number of gaps."""
    from legato_ingest.attribution.model.charge import charge
    from legato_ingest.attribution.model.gaps import Gaps
    from legato_ingest.attribution.model.step_model import charge_steps
    from legato_ingest.attribution.model.steps import Steps

    rng, count, total = np.random.default_rng(1), 100_000, 180_000
    interval = rng.normal(20e6, 1e6, total)
    recorded = (np.cumsum(interval) + rng.exponential(5e5, total)).astype(np.int64)
    some = np.full(total, 8.0)
    zero = np.zeros(total)
    steps = Steps(np.arange(total), recorded, interval, some, zero, zero, zero, some, some, zero, zero, zero)
    start = np.sort(rng.integers(10**9, int(recorded[-1]) - 10**9, count))
    gap = rng.integers(10**8, 9 * 10**8, count)
    none = np.zeros(count, np.int64)
    yes = np.ones(count, np.bool_)
    gaps = Gaps(
        start_ns=start,
        end_ns=start + gap,
        server_start_ns=start,
        server_end_ns=start + gap - 10**6,
        has_client=yes,
        has_server=yes,
        server_error_ns=none,
        clock_offset_ns=none,
        clock_offset_error_ns=none,
        hold_ns=none,
        hold_known=~yes,
        buffered=~yes,
        unread=~yes,
        socket_known=~yes,
        usual_ns=none,
        pace_ns=none,
        caught_up=np.zeros(count),
        is_open=~yes,
        never_preempted=~yes,
    )
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        charge(gaps, charge_steps(steps))
        seconds.append(time.perf_counter() - started)
    return count / sorted(seconds)[repeats // 2], count


def main() -> None:
    """Send the recording, wait for the verdicts, write them and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recording", type=pathlib.Path)
    options.add_argument("--out", type=pathlib.Path, required=True)
    options.add_argument("--hide", action="append", choices=("client", "server", "engine"), default=[])
    options.add_argument("--scrapes-only", action="store_true", help="send the engines' scrapes and hosts, and no step")
    options.add_argument("--gap-ms", type=float, default=100.0)
    options.add_argument("--excess-ms", type=float, default=50.0)
    given = options.parse_args()
    sides = [name for name in ("client", "server") if name not in given.hide and list(given.recording.glob(f"{name}*.jsonl.gz"))]
    if not sides:
        raise SystemExit(f"{given.recording} has no stream to judge: no client*.jsonl.gz and no server*.jsonl.gz that is not hidden")
    settings = {
        "LEGATO_RETENTION_DAYS": "0",
        "LEGATO_STALL_MS": str(given.gap_ms),
        "LEGATO_STALL_EXCESS_MS": str(given.excess_ms),
        "LEGATO_ATTRIBUTE_EVERY_S": "0.5",
        "LEGATO_ATTRIBUTE_GRACE_S": "0.5",
    }
    files = [path.name.removesuffix(".jsonl.gz") for side in sides for path in given.recording.glob(f"{side}*.jsonl.gz")]
    names = {trace_of(str(record["id"])).hex(): str(record["id"]) for file in files for record in lines(given.recording, file)}
    with tempfile.TemporaryDirectory() as folder, serve_process(pathlib.Path(folder) / "store", **settings) as served:
        streams = sent = steps = samples = 0
        if "engine" not in given.hide:
            steps = 0 if given.scrapes_only else send_steps(served, given.recording)
            samples += send_samples(served, engine_samples(given.recording))
        if "server" not in given.hide:
            samples += send_samples(served, socket_samples(given.recording))
            # Metrics are used only if middleware and agent report the same host and boot.
            sent = streams = send_streams(served, servers(given.recording), f"{HOST}::0" if given.scrapes_only else "")
        if "client" in sides:
            streams = send_streams(served, clients(given.recording))
            sent += streams
        found = verdicts(served, names, sent)
    given.out.write_text("".join(json.dumps(verdict) + "\n" for verdict in found), encoding="utf-8")
    speed, count = gaps_per_s()
    print(describe("chdb", "numpy"))
    what = f"{streams} streams, {steps:,} engine steps and {samples:,} node samples sent"
    print(f"{what}, {len(found):,} stalls judged; {os.path.basename(given.recording)}")
    print(json.dumps({"gaps_per_s": round(speed), "verdicts": len(found), "streams": streams, "n_gaps": count}))


if __name__ == "__main__":
    main()
