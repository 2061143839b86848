"""Reads recordings (`client.jsonl.gz`) as chunks with times and sizes, for the wire and storage benches.

A recording has, for each read of a client, its offset in µs, its bytes and the SSE events that it completed. The size of an event is its
share of the read's bytes. Recordings keep no text, so envelope bytes replace content bytes, which are smaller and repeat more.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["RecordedStream", "load", "streams_of"]

ROLE, TEXT, USAGE, DONE = 0, 1, 4, 7
_OUTCOMES = {"eof": "complete", "cancelled": "client_cancel", "timeout": "timeout"}


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """One client's stream: (µs from the start, bytes, kind) a chunk, and what else an observer at the client knows."""

    name: str
    start_ns: int
    end_us: int
    port: int
    outcome: str
    usage: tuple[int, int] | None
    wire_bytes: int
    head_us: int
    chunks: list[tuple[int, int, int]]

    @property
    def tokens(self) -> list[int] | None:
        """Tokens a chunk where they are certain: as many content chunks as tokens means one each. Else ``None``."""
        content = [int(kind == TEXT) for _, _, kind in self.chunks]
        return content if self.usage and sum(content) == self.usage[1] else None


def load(path: pathlib.Path) -> Iterator[RecordedStream]:
    """The streams of one recording's folder that brought any chunk."""
    with gzip.open(path / "client.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            events = [(at, size, count) for at, size, count in record["seg"] if count]
            if events:
                yield _stream(record, events)


def _stream(record: dict[str, object], events: list[tuple[int, int, int]]) -> RecordedStream:
    chunks = [(at, size // count + (size % count if i == 0 else 0), TEXT) for at, size, count in events for i in range(count)]
    chunks[0] = (chunks[0][0], 0, ROLE)
    outcome = _OUTCOMES.get(str(record["end"]), "upstream_error")
    usage = record.get("usage")
    segments: list[tuple[int, int, int]] = record["seg"]  # type: ignore[assignment]
    end_us = segments[-1][0]
    if usage:
        chunks[-1] = (chunks[-1][0], 0, USAGE)
    if outcome == "complete":
        # Recordings count no event for the closing [DONE]; it came with the last bytes.
        chunks.append((end_us, 0, DONE))
    if "cancel_ns" in record:
        end_us = max(end_us, (int(str(record["cancel_ns"])) - int(str(record["t0_ns"]))) // 1000)
    return RecordedStream(
        name=str(record["id"]),
        start_ns=int(str(record["t0_ns"])),
        end_us=end_us,
        port=int(str(record["sport"])),
        outcome=outcome,
        usage=(usage[0], usage[2]) if isinstance(usage, list) else None,
        wire_bytes=sum(size for _, size, _ in segments),
        head_us=segments[0][0],
        chunks=chunks,
    )


def streams_of(folder: pathlib.Path) -> list[RecordedStream]:
    """All clients of every recording in a folder (or of the one recording that the folder is)."""
    folders: Iterable[pathlib.Path] = [folder] if (folder / "client.jsonl.gz").exists() else sorted(folder.iterdir())
    found = [stream for each in folders if (each / "client.jsonl.gz").exists() for stream in load(each)]
    if not found:
        raise SystemExit(f"{folder} holds no recording: expected folders with client.jsonl.gz")
    return found
