"""One data part against its own list of files: complete, or cut off anywhere."""

from __future__ import annotations

import pathlib

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.storage.part_checksums import fault_of, listed_sizes

FIXTURE_IS_KEPT = [HealthCheck.function_scoped_fixture]


def test_a_complete_part_has_no_fault(part: pathlib.Path) -> None:
    """Nor one with more files than the list has."""
    assert fault_of(part) is None
    (part / "invalidated_system_columns.txt").write_text("as of a restored part")
    assert fault_of(part) is None
    (part / "invalidated_system_columns.txt").unlink()


@examples(60, suppress_health_check=FIXTURE_IS_KEPT)
@given(data=st.data())
def test_any_file_that_is_cut_off_is_found(part: pathlib.Path, data: st.DataObject) -> None:
    """Any file that is shorter than it was written, by any length, is reported."""
    path = data.draw(st.sampled_from(sorted(part.iterdir())))
    content = path.read_bytes()
    cut = data.draw(st.integers(0, max(len(content) - 1, 0)))
    path.write_bytes(content[:cut])
    try:
        found = fault_of(part)
    finally:
        path.write_bytes(content)
    # A text that is cut where a line ends looks complete; an empty file cannot be cut.
    ends = {"columns.txt": b"\n", "columns_substreams.txt": b"\n", "metadata_version.txt": b""}
    assert found is not None or not content or (cut and path.name in ends and content[:cut].endswith(ends[path.name]))


@examples(200, suppress_health_check=FIXTURE_IS_KEPT)
@given(at=st.integers(0, 10_000), junk=st.binary(max_size=40))
def test_no_list_raises_an_error(part: pathlib.Path, at: int, junk: bytes) -> None:
    """A list with any bytes in it is read, or reported as cut off."""
    path = part / "checksums.txt"
    content = path.read_bytes()
    path.write_bytes(content[: at % len(content)] + junk)
    try:
        fault_of(part)
    finally:
        path.write_bytes(content)


def test_a_list_of_another_version_says_nothing() -> None:
    """Its parts are taken as complete, because nothing is known of them."""
    assert listed_sizes(b"checksums format version: 5\n" + b"x" * 40) == {}
    assert listed_sizes(b"checksums for") is None
