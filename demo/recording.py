"""Reader of recordings: the arrival of each request, the time and size of each frame of its response, and the engine's steps.

A stream consists of its role frame, its content frames and its tail (usage, `[DONE]`). Each frame is an offset and a size. The replay and
the comparison use these and the steps as recorded by the engine's plugin. Recordings contain no text. Ground-truth files are not read.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

__all__ = [
    "DONE_BYTES",
    "RECORDINGS",
    "EngineStep",
    "Finished",
    "Recording",
    "Side",
    "Stream",
    "TwoSidedStream",
    "engines_of",
    "load",
    "two_sided_streams",
]

RECORDINGS = pathlib.Path(__file__).parent / "recordings"
DONE_BYTES = len(b"data: [DONE]\n\n")

Send = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stream:
    """One recorded response. Offsets are µs after the request's arrival; ``start_us`` is that arrival, µs after the first request's."""

    key: str
    start_us: int
    role: Send
    content: tuple[Send, ...]
    tail: tuple[Send, ...]
    prompt_tokens: int
    completion_tokens: int
    cancel_us: int | None

    @property
    def done(self) -> bool:
        """Whether the server sent `[DONE]`."""
        return bool(self.tail)

    def gaps_us(self) -> list[int]:
        """Return the times between consecutive content frames as the server sent them, up to the client's cancel if there was one."""
        times = [at for at, _ in self.content if self.cancel_us is None or at <= self.cancel_us]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended in a step. ``key`` is the key of its stream."""

    key: str
    reason: str = "length"
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One engine step. ``at_us``: time of its record, µs after the recording's first request.

    ``work``: prefill requests and tokens, decode requests and tokens, duration in ms. ``intervals_s``: for each request that got a token,
    the time since its previous token.
    """

    at_us: int
    running: int
    waiting: int
    kv_used: float
    preempted: int
    intervals_s: tuple[float, ...]
    work: tuple[int, int, int, int, float] | None
    finished: tuple[Finished, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The streams of one run in order of their start, and the steps of its engine.

    There are none without a record, and if the engines of a run with several were loaded together.
    """

    name: str
    streams: tuple[Stream, ...]
    steps: tuple[EngineStep, ...] = ()

    @property
    def duration_us(self) -> int:
        """Time from the first request to the last frame."""
        return max((stream.start_us + (*stream.content, *stream.tail)[-1][0] for stream in self.streams), default=0)

    def first(self, seconds: float) -> Recording:
        """Return the recording's first seconds. Streams still running then end there with their tail, as do their engine requests."""
        limit_us = int(seconds * 1e6)
        cut = [each for stream in self.streams if (each := _cut(stream, limit_us - stream.start_us)) is not None]
        steps = [step for step in self.steps if step.at_us <= limit_us]
        finished = {each.key: each for step in self.steps for each in step.finished}
        ended = {each.key for step in steps for each in step.finished}
        for stream in (each for each in cut if each.key not in ended):
            last_us = stream.start_us + stream.content[-1][0]
            place = max((i for i, step in enumerate(steps) if step.at_us <= last_us), default=-1)
            if place >= 0:
                end = replace(finished.get(stream.key, Finished(stream.key)), output_tokens=stream.completion_tokens)
                steps[place] = replace(steps[place], finished=(*steps[place].finished, end))
        return replace(self, streams=tuple(cut), steps=tuple(steps))


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a recorded stream: times of its first byte, of each chunk, and of its end, in µs after ``start_us``."""

    start_us: int
    head_us: int
    times_us: tuple[int, ...]
    sizes: tuple[int, ...]
    end_us: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class TwoSidedStream:
    """One recorded stream at both ends. A side without chunks has no times. ``start_us`` is the client's."""

    key: str
    start_us: int
    client: Side
    server: Side
    outcome: str
    prompt_tokens: int


@lru_cache(maxsize=8)
def two_sided_streams(name: str, engine: str = "") -> tuple[TwoSidedStream, ...]:
    """Return the streams of a recording, or of one of the engines in it, with content at their clients, with both ends.

    Raises ``FileNotFoundError``.
    """
    streams = {stream.key: stream for stream in load(name, engine).streams}
    folder = _folder(name)
    clients = {f"{folder.name}-{line['id']}": line for path in sorted(folder.glob("client*.jsonl.gz")) for line in _lines(path)}
    servers = {f"{folder.name}-{line['id']}": line for path in sorted(folder.glob("server*.jsonl.gz")) for line in _lines(path)}
    first_ns = min(servers[key]["t0_ns"] for key in streams)
    return tuple(
        _two_sided(stream, clients[key], servers[key], first_ns)
        for key, stream in streams.items()
        if key in clients and sum(count for _, _, count in clients[key]["seg"]) > 3
    )


def _two_sided(stream: Stream, client: dict[str, Any], server: dict[str, Any], first_ns: int) -> TwoSidedStream:
    reads = [(at, size // count) for at, size, count in client["seg"] if count for _ in range(count)]
    end_us = client["seg"][-1][0]
    complete = client["end"] == "eof"
    if complete:
        # Recordings have no event for the closing [DONE], which arrived with the last bytes.
        reads.append((end_us, 0))
    sends = server["sends"]
    start_us = (client["t0_ns"] - first_ns) // 1000
    return TwoSidedStream(
        key=stream.key,
        start_us=start_us,
        client=_side(start_us, client["seg"][0][0], reads, end_us, sum(size for _, size, _ in client["seg"])),
        server=_side(stream.start_us, sends[0][0], sends, sends[-1][0], sum(size for _, size in sends)),
        outcome="complete" if complete else "client_cancel" if client["end"] == "cancelled" else "upstream_error",
        prompt_tokens=stream.prompt_tokens,
    )


def _side(start_us: int, head_us: int, chunks: list[Send], end_us: int, wire_bytes: int) -> Side:
    times = tuple(at for at, _ in chunks)
    return Side(start_us, head_us, times, tuple(size for _, size in chunks), max(end_us, times[-1]), wire_bytes)


def _cut(stream: Stream, limit_us: int) -> Stream | None:
    content = tuple(send for send in stream.content if send[0] <= limit_us)
    if not content:
        return None
    if len(content) == len(stream.content):
        return stream
    last_us = content[-1][0]
    cancel_us = stream.cancel_us if stream.cancel_us is not None and stream.cancel_us <= limit_us else None
    tail = stream.tail or ((0, 0), (0, DONE_BYTES))
    return replace(
        stream,
        content=content,
        tail=tuple((last_us, size) for _, size in tail),
        completion_tokens=len(content),
        cancel_us=cancel_us,
    )


def _folder(name: str) -> pathlib.Path:
    return RECORDINGS / name if (RECORDINGS / name).is_dir() else pathlib.Path(name)


def engines_of(name: str) -> tuple[str, ...]:
    """Return the engines of a recording as the suffixes of their files: an empty one if there is only one engine."""
    found = [path.name.removeprefix("steps").removesuffix(".jsonl.gz") for path in _folder(name).glob("steps*.jsonl.gz")]
    return tuple(sorted(found)) or ("",)


def load(name: str, engine: str = "") -> Recording:
    """Load a recording by its name in `demo/recordings`, or by the path of its folder; or one of the engines in it (``engines_of``).

    Raises ``FileNotFoundError``.
    """
    folder = _folder(name)
    files = sorted(folder.glob(f"server{engine or '*'}.jsonl.gz"))
    if not files:
        known = ", ".join(sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir()))
        raise FileNotFoundError(f"no recording {name}: expected one of {known}, or a folder with server.jsonl.gz")
    clients = {str(line["id"]): line for path in sorted(folder.glob("client*.jsonl.gz")) for line in _lines(path)}
    lines = [line for path in files for line in _lines(path) if len(line["sends"]) > 1]
    first_ns = min(line["t0_ns"] for line in lines)
    streams = [_stream(f"{folder.name}-{line['id']}", line, clients.get(str(line["id"]), {}), first_ns) for line in lines]
    ordered = tuple(sorted(streams, key=lambda stream: (stream.start_us, stream.key)))
    return Recording(folder.name, ordered, tuple(_steps(folder, engine, first_ns)))


def _steps(folder: pathlib.Path, engine: str, first_ns: int) -> Iterator[EngineStep]:
    path = folder / f"steps{engine}.jsonl.gz"
    for line in _lines(path) if path.exists() else ():
        if line["ev"] != "step":
            continue
        work = line.get("it")
        yield EngineStep(
            at_us=(line["t_ns"] - first_ns) // 1000,
            running=line["run"],
            waiting=line["wait"] + line.get("defer", 0),
            kv_used=line["kv"],
            preempted=line.get("preempted", 0),
            intervals_s=tuple(line.get("itl") or ()),
            work=(work["ctx_reqs"], work["ctx_toks"], work["gen_reqs"], work["gen_toks"], work["ms"]) if work else None,
            finished=tuple(_finished(folder.name, each) for each in line.get("fin", ())),
        )


def _finished(name: str, each: dict[str, Any]) -> Finished:
    return Finished(
        key=f"{name}-{each['id'].removeprefix('chatcmpl-')}",
        reason=each.get("reason", ""),
        preemptions=each.get("preempt", 0),
        prompt_tokens=each.get("prompt", 0),
        output_tokens=each.get("gen", 0),
        queued_s=each.get("queued", 0.0),
        prefill_s=each.get("prefill", 0.0),
        decode_s=each.get("decode", 0.0),
    )


def _lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _stream(key: str, server: dict[str, Any], client: dict[str, Any], first_ns: int) -> Stream:
    sends: list[Send] = [(at, size) for at, size in server["sends"]]
    done = sends[-1][1] == DONE_BYTES
    content = tuple(sends[1:-2] if done else sends[1:])
    usage = client.get("usage")
    prompt, completion = (usage[0], usage[2]) if usage else (16, len(content))
    t0_ns = server["t0_ns"]
    cancel_ns = client.get("cancel_ns")
    return Stream(
        key=key,
        start_us=(t0_ns - first_ns) // 1000,
        role=sends[0],
        content=content,
        tail=tuple(sends[-2:]) if done else (),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cancel_us=(cancel_ns - t0_ns) // 1000 if cancel_ns else None,
    )
