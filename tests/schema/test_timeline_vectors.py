"""The timeline's test vectors: the committed file matches its generator, and the decoder and the encoder pass it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from legato._timeline import pack
from legato_ingest.timeline.codec import TimelineError, decode, read_head

ROOT = pathlib.Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "schema" / "timeline_vectors.json").read_text(encoding="utf-8"))


def _values(column: Any) -> list[int] | None:
    if isinstance(column, dict):
        return [column["repeat"]] * column["times"]
    return column  # type: ignore[no-any-return]


def test_the_file_matches_its_generator(tmp_path: pathlib.Path) -> None:
    """The committed file is the generator's output, so no vector was edited by hand."""
    script = ROOT / "tests" / "schema" / "make_timeline_vectors.py"
    out = subprocess.run(
        [sys.executable, "-c", f"import runpy; print(runpy.run_path({str(script)!r})['render'](), end='')"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout == (ROOT / "schema" / "timeline_vectors.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda vector: vector["name"])
def test_the_reader_decodes_valid_vectors(vector: dict[str, Any]) -> None:
    """Each valid vector decodes to its columns, in one batch with two other timelines."""
    blob = bytes.fromhex(vector["hex"])
    other = pack([5, 10_000], [1, 2], [3, 4], [1, 7], [1, 10])
    blobs = [other, blob, other]
    timelines, bad = decode(blobs, [read_head(each) for each in blobs])
    assert bad == {}
    at = slice(timelines.streams.starts[1], timelines.streams.ends[1])
    columns = {name: _values(column) for name, column in vector["columns"].items()}
    assert timelines.dt_us[at].tolist() == columns["dt"]
    for name, values, has in (
        ("bytes", timelines.sizes, timelines.has_sizes[1]),
        ("tokens", timelines.tokens, timelines.has_tokens[1]),
        ("hold", timelines.holds, timelines.has_holds[1]),
    ):
        assert (values[at].tolist() if has else None) == columns[name]
    assert timelines.kinds[at].tolist() == (columns["kind"] or [1] * len(columns["dt"] or []))
    assert timelines.dt_us[-2:].tolist() == [5, 9_995]
    assert timelines.holds[-2:].tolist() == [1, 10]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: vector["name"])
def test_the_reader_rejects_invalid_vectors(vector: dict[str, Any]) -> None:
    """Each invalid vector is rejected with the specification's error, and the other timelines of the batch are decoded."""
    other = pack([5, 10_000], [1, 2], [3, 4], [1, 7], [1, 10])
    blob = bytes.fromhex(vector["hex"])
    try:
        head = read_head(blob)
    except TimelineError as error:
        assert str(error) == vector["error"]
        return
    blobs = [other, blob, other]
    timelines, bad = decode(blobs, [read_head(other), head, read_head(other)])
    assert bad == {1: vector["error"]}
    assert np.array_equal(timelines.dt_us[:2], timelines.dt_us[-2:])


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda vector: vector["name"])
def test_the_encoder_round_trips_valid_vectors(vector: dict[str, Any]) -> None:
    """Each vector's columns, packed by the SDK, decode to the same columns and take at most 8 bytes more than the vector."""
    columns = {name: _values(column) for name, column in vector["columns"].items()}
    times = np.cumsum(columns["dt"] or [], dtype=np.int64).tolist()
    holds = columns["hold"]
    blob = pack(times, columns["bytes"], columns["tokens"], columns["kind"], holds)
    assert len(blob) <= len(bytes.fromhex(vector["hex"])) + 8
    timelines, bad = decode([blob], [read_head(blob)])
    assert bad == {}
    assert timelines.dt_us.tolist() == (columns["dt"] or [])
    assert timelines.sizes.tolist() == (columns["bytes"] or [0] * len(times))
    assert timelines.kinds.tolist() == (columns["kind"] or [1] * len(times))
