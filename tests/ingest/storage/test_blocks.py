"""Names of parts, of their folders when they are detached, and in messages."""

from __future__ import annotations

import pytest

from legato_ingest.storage.blocks import Blocks, is_covered


@pytest.mark.parametrize("prefix", ["", "broken_", "broken-3_", "broken-on-start_", "covered-by-broken_", "unexpected_", "clone_"])
@pytest.mark.parametrize("partition", ["20240101", "202401", "all", "0", "5f3c2a0000000000000000000000abcd"])
@pytest.mark.parametrize("rest", ["1_5_1", "1_5_0_12", "1_5_1_try2"])
def test_the_blocks_of_a_name(prefix: str, partition: str, rest: str) -> None:
    """With any prefix of a detached part, and after a mutation."""
    assert Blocks.of(f"{prefix}{partition}_{rest}") == Blocks(partition, 1, 5)


def test_other_names_have_none() -> None:
    """Folders of the engine."""
    assert [Blocks.of(name) for name in ("detached", "format_version.txt", "tmp", "all_1_2", "_1_2_3_4")] == [None] * 5


def test_names_in_a_message() -> None:
    """As the engine writes them."""
    text = (
        "Checksum mismatch for file data.bin in data part 20261126_3_3_1 (6dd9 vs c84d). (while reading from part /a/b_c/all_1_2_3_4/ on)"
    )
    assert Blocks.names_in(text) == ["20261126_3_3_1", "all_1_2_3_4"]
    assert Blocks.names_in("from part 'x_y_1_2_3' in 1_2_3") == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a_3_9_1"], True),
        (["a_1_20_1"], True),
        (["a_3_5_1", "a_6_9_0"], True),
        (["a_1_4_1", "a_4_7_1", "a_8_8_0", "a_9_9_0"], True),
        (["a_3_5_1", "a_7_9_0"], False),
        (["a_4_9_1"], False),
        (["a_3_8_1"], False),
        (["b_3_9_1", "detached"], False),
        ([], False),
    ],
)
def test_blocks_are_covered_without_a_hole(names: list[str], expected: bool) -> None:
    """By one part, or by several together, of the same partition."""
    assert is_covered("a_3_9_2", names) is expected
