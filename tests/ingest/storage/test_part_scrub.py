"""Parts that were damaged after they were written: named, set aside, and never shown as right."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.errors import StoreError, StoreRefused
from legato_ingest.jobs.part_scrub import PartScrubber
from legato_ingest.metrics import Metrics
from legato_ingest.storage import EmbeddedStore
from legato_ingest.storage.part_list import PartList

# The two parts of the table have 3,000 and 2,000 rows.
ROWS, SUMS = (3_000, 2_000), (4_498_500, 7_999_000)
WHOLE = {(5_000, 12_497_500)}
ONE_LOST = {(ROWS[0], SUMS[0]), (ROWS[1], SUMS[1])}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A closed store with a table of two parts, which were listed."""
    path = tmp_path_factory.mktemp("scrub") / "store"
    store = EmbeddedStore(path)
    store.command("CREATE TABLE t (a UInt64, b String, INDEX i b TYPE minmax) ENGINE = MergeTree ORDER BY a PARTITION BY a < 3000")
    for first, last in ((0, 3_000), (3_000, 5_000)):
        store.insert("t", pa.table({"a": list(range(first, last)), "b": [f"text {number % 97}" for number in range(first, last)]}))
    store.verify()
    store.close()
    return path


@pytest.fixture
def store(written: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A copy of the store, to be damaged."""
    path = tmp_path / "store"
    shutil.copytree(written, path, symlinks=True)
    yield path


def parts(store: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of the parts of the table, in order."""
    return sorted(found.parent for found in (store / "store").rglob("count.txt"))


def shown(store: EmbeddedStore) -> tuple[int, int] | str:
    """Return the number of rows and their sum as a query finds them, or its error."""
    try:
        ((rows, total),) = store.select("SELECT count(), sum(a + 0 * length(b)) FROM t WHERE b != ''")
    except StoreError as error:
        return str(error)
    return int(rows), int(total)


def opened(path: pathlib.Path, check: Callable[[EmbeddedStore, Metrics, PartScrubber], None]) -> None:
    """Open the store and scrub it once; then check it."""
    with (
        contextlib.closing(EmbeddedStore(path)) as store,
        contextlib.closing(PartScrubber(store.clone(), metrics := Metrics())) as scrubber,
    ):
        scrubber.step()
        check(store, metrics, scrubber)
        store.verify()


def lost(metrics: Metrics) -> float:
    """Return the number of lost parts in the gauge."""
    return metrics.registry.get_sample_value("legato_store_parts_lost") or 0.0


@given(st.data())
@examples(8)
def test_a_bit_that_flips_is_never_shown_as_right(
    written: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bit of any file of a part: either the rows are right, or the part is named and the rows of the other part are shown."""
    files = sorted(each.relative_to(written) for part in parts(written) for each in part.iterdir() if each.stat().st_size)
    file, at, bit = data.draw(st.sampled_from(files)), data.draw(st.integers(0, 2**32)), data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flip") / "store"
    shutil.copytree(written, path, symlinks=True)
    content = bytearray((path / file).read_bytes())
    content[at % len(content)] ^= 1 << bit
    (path / file).write_bytes(content)

    def check(store: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        # Some damage shows only in a query; the next scrub finds its part.
        if isinstance(shown(store), str):
            scrubber.step()
        assert (lost(metrics) == 0 and shown(store) in WHOLE) or (lost(metrics) == 1 and shown(store) in ONE_LOST)

    try:
        opened(path, check)
    finally:
        shutil.rmtree(path)


def test_a_part_that_was_deleted_is_named(store: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log of each process, and in the gauge until the list is removed."""
    gone = parts(store)[0]
    shutil.rmtree(gone)

    def check(opened: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        scrubber.step()
        assert lost(metrics) == 1 and shown(opened) in ONE_LOST
        assert metrics.errors.labels("scrub", "lost_part")._value.get() == 1

    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.ERROR, "legato"):
            opened(store, check)
        (message,) = (record.getMessage() for record in caplog.records)
        assert f"part {gone.name} of table t is lost (missing)" in message


@pytest.mark.parametrize("name", ["data.bin", "count.txt", "data.cmrk4"])
def test_a_file_that_was_deleted_is_named_at_each_start(store: pathlib.Path, name: str) -> None:
    """As long as the part is set aside; when its folder is removed, the loss is accepted."""
    (parts(store)[0] / name).unlink()

    def check(opened: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 1 and shown(opened) in ONE_LOST

    def check_accepted(opened: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 0 and shown(opened) in ONE_LOST

    opened(store, check)
    opened(store, check)
    for folder in (store / "store").rglob("detached"):
        for part in folder.iterdir():
            shutil.rmtree(part)
    opened(store, check_accepted)


def test_a_file_that_is_cut_off_while_the_store_is_open_is_found(store: pathlib.Path) -> None:
    """Its part was read before. The query that fails names the part, and the next scrub reads it again."""

    def check(engine: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 0
        os.truncate(parts(store)[0] / "data.bin", 1_000)
        assert "Code: 33" in str(shown(engine))
        scrubber.step()
        assert lost(metrics) == 1 and shown(engine) in ONE_LOST

    opened(store, check)


def test_parts_that_were_merged_are_not_missing(store: pathlib.Path) -> None:
    """After a crash the list may have the parts before the merge. Dropped tables and a list that is damaged say nothing."""
    listed = (store / "legato_parts.json").read_bytes()
    engine = EmbeddedStore(store)
    engine.command("CREATE TABLE u (a UInt64) ENGINE = MergeTree ORDER BY a")
    for first in range(3):
        engine.insert("u", pa.table({"a": [first]}))
    engine.verify()
    before = (store / "legato_parts.json").read_bytes()
    assert before != listed
    engine.command("OPTIMIZE TABLE u FINAL")
    engine.command("DROP TABLE t SYNC")
    engine.close()

    def check(opened: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 0

    strange = (b"[]", b'{"a": 1}', b'{"tables": {"a\\u0000": ["t", {"all_1_1_0": {"count.txt": 1e999}}, {}]}, "checksum": 1}', b"[" * 10**5)
    for content in (before, *strange, b"\xff", b"", before.replace(b"1", b"2", 1)):
        (store / "legato_parts.json").write_bytes(content)
        opened(store, check)


def test_a_part_may_have_the_name_of_a_lost_one(store: pathlib.Path) -> None:
    """The engine numbers new parts from the last one that it has. The new part stays, and the lost one is named."""
    last = parts(store)[0]
    assert last.name.startswith("0_2_2")
    for _ in range(2):
        # A letter of a name in the list of columns.
        content = (last / "columns.txt").read_bytes()
        (last / "columns.txt").write_bytes(content.replace(b"`b`", b"`c`"))

        def check(engine: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
            assert lost(metrics) >= 1
            engine.insert("t", pa.table({"a": [4_000, 4_001], "b": ["new", "new"]}))
            assert last.is_dir() and shown(engine) == (3_002, 4_498_500 + 8_001)

        opened(store, check)
    assert {each.name for each in (last.parent / "detached").iterdir()} == {f"broken_{last.name}", f"broken-1_{last.name}"}


def test_a_merge_over_a_lost_part_hides_no_loss(tmp_path: pathlib.Path) -> None:
    """The name of the merged part covers the part between its sources; the loss is named after a restart, too."""
    path = tmp_path / "store"
    with contextlib.closing(EmbeddedStore(path)) as engine:
        engine.command("CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a")
        engine.command("SYSTEM STOP MERGES t")
        for first in range(3):
            engine.insert("t", pa.table({"a": [first], "b": ["x"]}))
    middle = next(part for part in parts(path) if part.name == "all_2_2_0")
    content = bytearray((middle / "data.bin").read_bytes())
    content[-1] ^= 1
    (middle / "data.bin").write_bytes(content)

    def check(engine: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        engine.command("OPTIMIZE TABLE t FINAL")
        scrubber.step()
        assert lost(metrics) == 1 and shown(engine) == (2, 2)

    for _ in range(2):
        opened(path, check)


def test_a_strange_file_in_a_part_is_no_damage(store: pathlib.Path) -> None:
    """As file managers leave them."""
    (parts(store)[0] / ".DS_Store").write_bytes(b"x")

    def check(engine: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 0 and shown(engine) in WHOLE

    opened(store, check)


def test_a_store_behind_a_link_is_the_same(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The engine names folders without links."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "link").symlink_to(store)

    def check(engine: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 0 and shown(engine) in WHOLE

    def check_lost(engine: EmbeddedStore, metrics: Metrics, scrubber: PartScrubber) -> None:
        assert lost(metrics) == 1 and shown(engine) in ONE_LOST

    opened(tmp_path / "deep" / "er" / "link", check)
    shutil.rmtree(parts(store)[0])
    opened(tmp_path / "deep" / "er" / "link", check_lost)


def test_a_list_that_cannot_be_written_is_left_out(tmp_path: pathlib.Path) -> None:
    """On a full disk, for example."""
    parts = PartList(tmp_path / "no such folder")
    parts.compare()
    for names in ([], ["all_1_1_0"], ["all_1_2_1"]):
        parts.update({"t": ["a"]}, {"a": names})
    assert parts.lost({"t": ["a"]}) == [] and os.listdir(tmp_path) == []


def test_a_readers_text_names_no_suspects(store: pathlib.Path) -> None:
    """A function puts a text of the reader into its error. A part that the engine names by its folder is read again."""
    folder, read = parts(store)[0], list[str]()
    with contextlib.closing(EmbeddedStore(store)) as opened:
        opened.make_tenant_views()
        opened._scrub.suspect = read.append  # type: ignore[assignment]
        for text in (folder.name, f"/nowhere/{folder.name}", "/tmp"):
            with pytest.raises(StoreRefused, match="117"):
                opened.query_bytes(f"SELECT CAST('x while reading from part {text}' AS JSON)", tenant="shop")
        assert read == []
        assert opened._scrub.suspect_of_reader(f"Code: 40. (while reading from part {folder}/ located on disk default)")
    assert read == [folder.name]
