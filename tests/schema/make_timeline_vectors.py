"""Generator of schema/timeline_vectors.json. It follows schema/TIMELINE.md and imports no implementation.

Run it as ``python tests/schema/make_timeline_vectors.py``. A test compares its output with the committed file.
"""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any

PATH = pathlib.Path(__file__).parents[2] / "schema" / "timeline_vectors.json"
DT, BYTES, TOKENS, KIND, HOLD = 1, 2, 3, 4, 5


def column(width: int, base: int, packed: bytes, exceptions: dict[int, int] | None = None) -> bytes:
    """Return a column's payload. ``packed`` has the packed values as bytes; ``exceptions`` maps positions to values."""
    places = exceptions or {}
    head = struct.pack("<BIH", width, base, len(places))
    return head + packed + struct.pack(f"<{len(places)}H", *places) + struct.pack(f"<{len(places)}I", *places.values())


def timeline(chunks: int, columns: list[tuple[int, bytes]], version: int = 1) -> bytes:
    """Return a timeline of these columns: (id, payload) each."""
    directory = b"".join(struct.pack("<BI", name, len(payload)) for name, payload in columns)
    return struct.pack("<BBI", version, len(columns), chunks) + directory + b"".join(payload for _, payload in columns)


def valid() -> list[dict[str, Any]]:
    """Return the valid vectors, each with the columns that a reader must decode; ``null`` is an absent column."""
    steady = column(0, 20_000, b"")
    every_width = timeline(
        5,
        [
            (DT, column(16, 1000, struct.pack("<5H", 0, 1, 65_535, 7, 0), {3: 4_000_000_000})),
            (BYTES, column(4, 3, bytes([0x10, 0x32, 0x04]), {0: 900})),
            (TOKENS, column(1, 1, bytes([0b01101]))),
            (KIND, column(2, 0, bytes([0b01_01_01_00, 0b11]), {4: 7})),
            (HOLD, column(8, 0, bytes([0, 1, 2, 255, 4]))),
        ],
    )
    return [
        case("no chunk", timeline(0, [(DT, column(0, 0, b""))]), []),
        case("one chunk", timeline(1, [(DT, column(0, 412_345, b""))]), [412_345]),
        case("constant gap", timeline(3, [(DT, steady)]), [20_000] * 3),
        case("one read, two chunks", timeline(2, [(DT, column(32, 0, struct.pack("<2I", 500, 0)))]), [500, 0]),
        case(
            "every column and most widths",
            every_width,
            [1000, 1001, 66_535, 4_000_000_000, 1000],
            bytes=[900, 4, 5, 6, 7],
            tokens=[2, 1, 2, 2, 1],
            kind=[0, 1, 1, 1, 7],
            hold=[0, 1, 2, 255, 4],
        ),
        case("unknown ids are skipped", timeline(2, [(200, b"\xff\xff\xff"), (DT, steady), (6, b"")]), [20_000] * 2),
        case("unknown kinds are kept", timeline(2, [(DT, steady), (KIND, column(0, 99, b""))]), [20_000] * 2, kind=[99, 99]),
        case("exceptions below the base", timeline(2, [(DT, column(8, 100, bytes([0, 5]), {0: 3}))]), [3, 105]),
        case(
            "spare bits are ignored",
            timeline(3, [(DT, steady), (BYTES, column(1, 0, bytes([0b11111_010])))]),
            [20_000] * 3,
            bytes=[0, 1, 0],
        ),
        case("the largest value", timeline(1, [(DT, column(0, 2**32 - 1, b""))]), [2**32 - 1]),
        case("the most chunks, 18 bytes", timeline(65_536, [(DT, column(0, 1, b""))]), [1] * 65_536),
    ]


def case(name: str, blob: bytes, dt: list[int], **columns: list[int]) -> dict[str, Any]:
    """Return one valid vector; a long column of one repeated value is written as ``{"repeat": value, "times": n}``."""

    def short(values: list[int]) -> Any:
        return {"repeat": values[0], "times": len(values)} if len(values) > 16 and len(set(values)) == 1 else values

    named = {"dt": dt, **{key: columns.get(key) for key in ("bytes", "tokens", "kind", "hold")}}
    return {"name": name, "hex": blob.hex(), "columns": {key: short(values) if values else values for key, values in named.items()}}


def invalid() -> list[dict[str, str]]:
    """Return the invalid vectors, each with the error of schema/TIMELINE.md that a reader must report."""
    steady = column(0, 20_000, b"")
    good = timeline(2, [(DT, steady)])
    bad = [
        ("empty", b"", "truncated"),
        ("half a head", good[:4], "truncated"),
        ("directory cut off", good[:8], "truncated"),
        ("payload cut off", good[:-1], "truncated"),
        ("version 0", b"\0" + good[1:], "version"),
        ("version 2", timeline(2, [(DT, steady)], version=2), "version"),
        ("65,537 chunks", timeline(65_537, [(DT, steady)]), "chunks"),
        ("four billion chunks", timeline(2**32 - 1, [(DT, steady)]), "chunks"),
        ("dt twice", timeline(2, [(DT, steady), (DT, steady)]), "duplicate"),
        ("an unknown id twice", timeline(2, [(DT, steady), (77, b""), (77, b"")]), "duplicate"),
        ("no columns", timeline(2, []), "missing"),
        ("no dt", timeline(2, [(BYTES, steady)]), "missing"),
        ("width 3", timeline(2, [(DT, column(3, 0, b"\0"))]), "width"),
        ("width 64", timeline(2, [(DT, column(64, 0, bytes(16)))]), "width"),
        ("column shorter than its head", timeline(2, [(DT, b"\0\0\0")]), "length"),
        ("packed too short", timeline(4, [(DT, column(16, 0, bytes(6)))]), "length"),
        ("packed too long", timeline(4, [(DT, column(16, 0, bytes(10)))]), "length"),
        ("missing exceptions", timeline(2, [(DT, struct.pack("<BIH", 0, 1, 2))]), "length"),
        ("more exceptions than chunks", timeline(1, [(DT, column(0, 1, b"", {0: 5, 1: 6}))]), "exceptions"),
        ("exception beyond the end", timeline(2, [(DT, column(0, 1, b"", {2: 5}))]), "exceptions"),
        ("exceptions descending", timeline(3, [(DT, column(0, 1, b"", {2: 5, 1: 6}))]), "exceptions"),
        ("base plus value overflows", timeline(1, [(DT, column(1, 2**32 - 1, b"\1"))]), "overflow"),
        ("bytes after the last payload", good + b"\0", "trailing"),
    ]
    return [{"name": name, "hex": blob.hex(), "error": error} for name, blob, error in bad]


def render() -> str:
    """Return the text of the file."""
    rows = {"valid": valid(), "invalid": invalid()}
    parts = [f'"{key}": [\n' + ",\n".join(json.dumps(row) for row in rows[key]) + "\n]" for key in ("valid", "invalid")]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
