"""The parsed-layout cache: results equal those of parsing each line again."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_gpu_agent.collectors.exposition import BadExposition, ExpositionReader
from legato_gpu_agent.collectors.layout_cache import ParsedLayout
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.engines.registry import ENGINES

RESPONSES = pathlib.Path(__file__).parents[1] / "data" / "responses"
S = 10**9
# One line more, less, moved, renamed, or with another number: changes to the lines of a text at a position.
CHANGES: tuple[Callable[[list[bytes], int, int], object], ...] = (
    lambda lines, at, other: lines.pop(at),
    lambda lines, at, other: lines.insert(other, lines[at]),
    lambda lines, at, other: lines.insert(at, b""),
    lambda lines, at, other: lines.insert(at, b"# another"),
    lambda lines, at, other: lines.__setitem__(at, lines[other]),
    lambda lines, at, other: lines.insert(other, lines.pop(at)),
    lambda lines, at, other: lines.__setitem__(at, lines[at].replace(b'="', b'="1', 1)),
    lambda lines, at, other: lines.__setitem__(at, lines[at].rpartition(b" ")[0] + b" NaN"),
    lambda lines, at, other: lines.__setitem__(at, lines[at].rpartition(b" ")[0] + b" +Inf"),
    lambda lines, at, other: lines.__setitem__(at, lines[at].rpartition(b" ")[0] + b" %d" % other),
)
EDITS = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=3)


def result(text: ExpositionReader, lines: Sequence[bytes], now_ns: int) -> list[Measured] | str:
    """Return the measurements of this text, or its error."""
    try:
        return text.read(b"\n".join(lines) + b"\n", now_ns)
    except BadExposition as error:
        return str(error)


@pytest.mark.parametrize(("kind", "name"), [("vllm", "vllm_0.32"), ("tgi", "tgi_3.3"), ("sglang", "sglang_0.5_tp2")])
def test_results_equal_those_without_the_cache(kind: str, name: str) -> None:
    """Text after text, each slightly different from the last one, compared with a reader that parses every line each time."""
    texts = [(RESPONSES / f"{name}{later}.txt").read_bytes().split(b"\n")[:-1] for later in ("", "_later")]

    @examples(20)
    @given(st.lists(st.tuples(st.booleans(), EDITS), min_size=2, max_size=6))
    def check(steps: list[tuple[bool, list[tuple[Callable[[list[bytes], int, int], object], int, int]]]]) -> None:
        quick, slow = ExpositionReader(ENGINES[kind], "e"), ExpositionReader(ENGINES[kind], "e")
        for number, (later, edits) in enumerate(steps, 1):
            lines = list(texts[later])
            for change, at, other in edits:
                change(lines, at % len(lines), other % len(lines))
            slow._layout = ParsedLayout()
            found, expected = result(quick, lines, number * S), result(slow, lines, number * S)
            assert sorted(map(repr, found)) == sorted(map(repr, expected))

    check()


def test_a_replaced_line_is_detected() -> None:
    """The same number of lines, one of them different: a used line in place of an unused one, of a blank one, of a comment."""
    wanted = b"vllm:num_requests_running 3"
    others = (b"other 1", b"", b"# HELP other", b"vllm:num_requests_waiting 1", b"nothing")
    for before in (*others, wanted[:-2], wanted[:-2] + b"\t"):
        text = ExpositionReader(ENGINES["vllm"], "e")
        for number, line in enumerate((before, before, wanted, before), 1):
            values = {
                each.metric: each.value
                for each in text.read(b"vllm:kv_cache_usage_perc 0.5\n%b\n" % line, number * S)
                if isinstance(each, Measurement)
            }
            assert values.get("legato.engine.requests.running") == (3.0 if line is wanted else None)
            assert values["legato.engine.kv_cache.utilization"] == 0.5
