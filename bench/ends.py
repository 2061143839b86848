"""How long the work for ended streams keeps another stream of the same process waiting.

    python bench/ends.py [--rounds 20] [--streams 20] [--chunks 1000]

Another process sends its time every 2 ms to an asyncio loop, which notes how late it reads each one. In a round, streams with as many
unparsed reads as a running stream may have end together, and the lateness is measured until all are exported to a sink in a third
process. Rounds in which nothing ends alternate with them. `added_p999_ms` is the difference of the two p99.9, each over all rounds. It
does not measure what recording costs: `sdk.py` does. Run it with `chrt -f 50` on a shared machine. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.server
import json
import multiprocessing
import pathlib
import socket
import struct
import sys
import time
from multiprocessing.connection import Connection

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import legato  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from legato._body import Body  # noqa: E402
from legato._recorder import StreamRecorder  # noqa: E402
from legato._records import Origin  # noqa: E402
from legato._stream import begin  # noqa: E402

TICK_S = 0.002
QUIET_S = 1.0
# Fewer than those at which the worker parses.
UNPARSED = 400
_TIME = struct.Struct("=q")
_EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1763700000,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)


def tick(connection: socket.socket) -> None:
    """Send the time until the reader is gone, on an absolute schedule."""
    due = time.monotonic()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            due += TICK_S
            time.sleep(max(0.0, due - time.monotonic()))
            connection.sendall(_TIME.pack(time.monotonic_ns()))


def sink(port: Connection) -> None:
    """Accept every export."""

    class Accepting(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Accepting)
    port.send(server.server_port)
    server.serve_forever()


def add(recorder: StreamRecorder, chunks: int) -> None:
    """Record so many reads, and the hold of each."""
    for number in range(chunks):
        now = time.monotonic_ns()
        recorder.read((now, _EVENT))
        recorder.held_read((now, 1_000 * number))


async def read_ticks(connection: socket.socket, late_ms: list[float]) -> None:
    """Note how late each time is read."""
    loop = asyncio.get_running_loop()
    while True:
        received = await loop.sock_recv(connection, _TIME.size)
        late_ms.append((time.monotonic_ns() - _TIME.unpack(received)[0]) / 1e6)


async def run(connection: socket.socket, rounds: int, streams: int, chunks: int) -> dict[str, list[float]]:
    """Return the lateness of each time: while nothing ends, and while streams end."""
    late: dict[str, list[float]] = {"quiet": [], "ends": []}
    for _ in range(rounds):
        for name, found in late.items():
            recorders = [begin(Origin(model="m", provider="openai"), body=Body("text/event-stream")) for _ in range(streams)]
            reading = asyncio.create_task(read_ticks(connection, []))
            for recorder in recorders:
                add(recorder, chunks - UNPARSED)
            while any(recorder.undigested for recorder in recorders):
                await asyncio.sleep(0.1)
            for recorder in recorders:
                add(recorder, UNPARSED)
            await asyncio.sleep(0.1)
            reading.cancel()
            reading = asyncio.create_task(read_ticks(connection, found))
            if name == "ends":
                for recorder in recorders:
                    recorder.end()
            deadline = time.monotonic() + QUIET_S
            while time.monotonic() < deadline or legato.stats()["queued"] or legato.stats()["waiting"]:
                await asyncio.sleep(0.1)
            reading.cancel()
            for recorder in recorders:
                recorder.end()
            await asyncio.to_thread(legato.flush, 60)
    return late


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of the values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Run the rounds and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--streams", type=int, default=20)
    options.add_argument("--chunks", type=int, default=1000)
    given = options.parse_args()
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair()
    reading, writing = spawning.Pipe(duplex=False)
    processes = [spawning.Process(target=tick, args=(theirs,), daemon=True), spawning.Process(target=sink, args=(writing,), daemon=True)]
    for process in processes:
        process.start()
    legato.configure(f"http://127.0.0.1:{reading.recv()}", service_name="bench")
    ours.setblocking(False)
    late = asyncio.run(run(ours, given.rounds, given.streams, given.chunks))
    print(describe("opentelemetry-sdk"))
    print(f"ms from a send to its read; {given.rounds} rounds in which {given.streams} streams of {given.chunks} chunks end together")
    at = {name: {share: quantile(values, share) for share in (0.5, 0.99, 0.999, 1.0)} for name, values in late.items()}
    for name, found in at.items():
        print(f"  {name:6} n {len(late[name]):6}   " + "   ".join(f"p{100 * share:g} {value:.2f}" for share, value in found.items()))
    figures = {f"{name}_p999_ms": round(found[0.999], 2) for name, found in at.items()}
    added = round(at["ends"][0.999] - at["quiet"][0.999], 2)
    print(json.dumps({"added_p999_ms": added, **figures, "n_quiet": len(late["quiet"]), "n_ends": len(late["ends"])}))


if __name__ == "__main__":
    main()
