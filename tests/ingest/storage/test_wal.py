"""The write-ahead log: what was appended and not stored is pending after any end, at any byte, and nothing grows without bound."""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import random
import struct
import tempfile
import zlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.errors import LegatoError, StoreUnavailable
from legato_ingest.storage.wal import ASIDE, WriteAheadLog, expect_all_stored, folder_of, left_aside

PAYLOADS = [b"first", b"", b"x" * 70_000, b"LGW2" * 3]
HEAD_BYTES = 24


def reopened(folder: pathlib.Path) -> list[tuple[int, bytes]]:
    """Return what is pending for a new process."""
    log = WriteAheadLog(folder)
    try:
        return list(log.pending())
    finally:
        log.close()


def sizes(folder: pathlib.Path) -> list[int]:
    """Return the sizes of the files."""
    return [path.stat().st_size for path in sorted(folder.glob("*.wal"))]


def test_what_is_not_stored_is_pending(tmp_path: pathlib.Path) -> None:
    """In the order of the appends, once after each start, until it is stored. Then the file is empty."""
    log = WriteAheadLog(tmp_path)
    assert log.append(PAYLOADS[:3]) == log.append(PAYLOADS[3:]) == 0
    for _ in range(2):
        assert reopened(tmp_path) == [(0, payload) for payload in PAYLOADS]
    log.stored(0, 3)
    assert len(reopened(tmp_path)) == 4
    log.stored(0, 1)
    assert reopened(tmp_path) == [] and sizes(tmp_path) == [0, 0, 0]
    log.close()


def test_a_payload_in_pieces_is_one_payload(tmp_path: pathlib.Path) -> None:
    """Also if one of them is too large to be copied; a set-aside one, too."""
    log, large = WriteAheadLog(tmp_path), bytes(range(256)) * 5_000
    segment = log.append([(b"head", large), b"whole", (b"", b"two", b"three")])
    assert [payload for _, payload in reopened(tmp_path)] == [b"head" + large, b"whole", b"twothree"]
    log.set_aside(segment, (b"a", large))
    assert reopened(tmp_path)[-1] == (ASIDE, b"a" + large)
    log.close()


def test_segments_take_turns(tmp_path: pathlib.Path) -> None:
    """While one is stored the other is appended to, so under a load that never ends both are emptied again and again."""
    log = WriteAheadLog(tmp_path)
    waiting = log.append([b"0" * 1000])
    for number in range(1, 20):
        log.rotate()
        log.rotate()
        segment = log.append([b"%d" % number * 1000])
        assert segment != waiting
        log.stored(waiting, 1)
        waiting = segment
        assert [payload[:1] for _, payload in reopened(tmp_path)] == [(b"%d" % number)[:1]]
    assert max(sizes(tmp_path)) < 3_000
    log.close()


def test_a_segment_is_emptied_with_its_last_payload_only(tmp_path: pathlib.Path) -> None:
    """The rows of the first payloads are stored while later ones are still read from the file."""
    log = WriteAheadLog(tmp_path)
    log.append([b"a", b"b", b"c"])
    log.close()
    log, found = WriteAheadLog(tmp_path), []
    for segment, payload in log.pending():
        found.append(payload)
        log.stored(segment, 1)
    assert found == [b"a", b"b", b"c"] and sizes(tmp_path) == [0, 0, 0]
    log.close()


@pytest.mark.parametrize("cut", ["record", "head"])
def test_a_record_that_was_cut_off_is_dropped(tmp_path: pathlib.Path, cut: str, caplog: pytest.LogCaptureFixture) -> None:
    """A crash in the middle of a write leaves any part of the record. The complete ones before count, and appends continue behind them."""
    log = WriteAheadLog(tmp_path)
    log.append([b"kept", b"kept too"])
    whole = (tmp_path / "0.wal").read_bytes()
    log.append([b"cut off" * 3])
    log.close()
    full = (tmp_path / "0.wal").read_bytes()
    for end in range(len(whole), len(whole) + HEAD_BYTES) if cut == "head" else range(len(whole) + HEAD_BYTES, len(full)):
        (tmp_path / "0.wal").write_bytes(full[:end])
        log = WriteAheadLog(tmp_path)
        assert [payload for _, payload in log.pending()] == [b"kept", b"kept too"]
        log.append([b"next"])
        log.close()
        assert [payload for _, payload in reopened(tmp_path)] == [b"kept", b"kept too", b"next"]
    assert "bytes behind the last record are dropped" in caplog.text


def test_a_record_of_full_length_without_its_contents_is_dropped(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a power failure a file may have its new length and zeros in it. With its head it may also have been acknowledged."""
    log = WriteAheadLog(tmp_path)
    log.append([b"kept"])
    end = (tmp_path / "0.wal").stat().st_size
    log.append([b"y" * 500])
    log.close()
    content = (tmp_path / "0.wal").read_bytes()
    for damaged, lost in ((content[:end] + bytes(len(content) - end), 0), (content[: end + HEAD_BYTES] + bytes(500), 1)):
        (tmp_path / "0.wal").write_bytes(damaged)
        log = WriteAheadLog(tmp_path)
        assert list(log.pending()) == [(0, b"kept")] and log.damaged == lost
        log.close()
    assert f"the record of 500 bytes at byte {end + HEAD_BYTES} is damaged: its request, which may have been acknowledged" in caplog.text


def test_a_damaged_record_costs_no_other(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped bit in a payload is found by its checksum, the log names the place, and the records behind it are read."""
    log = WriteAheadLog(tmp_path)
    log.append([b"a" * 100, b"b" * 100, b"c" * 100])
    log.close()
    content = bytearray((tmp_path / "0.wal").read_bytes())
    content[content.index(b"bbb") + 50] ^= 4
    (tmp_path / "0.wal").write_bytes(content)
    with caplog.at_level(logging.ERROR, "legato"):
        assert reopened(tmp_path) == [(0, b"a" * 100), (0, b"c" * 100)]
    assert "100 bytes at byte 148 is damaged" in caplog.text


def rewritten(folder: pathlib.Path, content: bytes) -> list[bytes]:
    """Return the payloads that are pending after the first segment got other contents."""
    (folder / "0.wal").write_bytes(content)
    return [payload for _, payload in reopened(folder)]


def test_a_damaged_head_costs_no_other_record(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever bit of it is flipped, and also if a whole sector cannot be read; the log names the place, and appends go on behind."""
    log = WriteAheadLog(tmp_path)
    log.append([b"a" * 100])
    first = (tmp_path / "0.wal").stat().st_size
    log.append([b"b" * 600, b"c" * 2_000_000, b"d"])
    log.close()
    content = (tmp_path / "0.wal").read_bytes()
    for bit in range(8 * HEAD_BYTES):
        damaged = bytearray(content)
        damaged[first + bit // 8] ^= 1 << bit % 8
        found = rewritten(tmp_path, bytes(damaged))
        assert found[0] == b"a" * 100 and found[-2:] == [b"c" * 2_000_000, b"d"] and len(found) <= 4, bit
    caplog.clear()
    assert rewritten(tmp_path, content[:first] + bytes(512) + content[first + 512 :]) == [b"a" * 100, b"c" * 2_000_000, b"d"]
    assert f"0.wal: the bytes {first} to {first + HEAD_BYTES + 600} are damaged" in caplog.text
    log = WriteAheadLog(tmp_path)
    assert len(list(log.pending())) == 3 and log.damaged == 1
    log.append([b"e"])
    assert reopened(tmp_path)[-1] == (0, b"e")
    log.stored(0, 4)
    assert sizes(tmp_path) == [0, 0, 0]
    log.close()


def test_a_payload_passes_off_no_part_of_itself_as_a_record(tmp_path: pathlib.Path) -> None:
    """It would be the request of another tenant: behind a damaged head, only the seal of this log and this place counts."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    log = WriteAheadLog(outside)
    log.append([b"forged"])
    log.close()
    forged = (outside / "0.wal").read_bytes()
    log = WriteAheadLog(inside)
    log.append([b"own"])
    own = (inside / "0.wal").read_bytes()
    unsealed = struct.pack("<4sIQ", b"LGW1", zlib.crc32(b"forged"), 6) + b"forged"
    log.append([b"x" * 100 + forged + own + unsealed + b"y" * 100, b"last"])
    log.close()
    content = (inside / "0.wal").read_bytes()
    for size in (HEAD_BYTES, HEAD_BYTES + 100, HEAD_BYTES + 100 + len(forged) + len(own)):
        damaged = content[: len(own)] + bytes(size) + content[len(own) + size :]
        assert rewritten(inside, damaged) == [b"own", b"last"]


def test_a_log_of_an_earlier_version_is_read(tmp_path: pathlib.Path) -> None:
    """Its heads have no seals, and it has no key. A log that has lost its key is read, too."""
    before = b"".join(struct.pack("<4sIQ", b"LGW1", zlib.crc32(each), len(each)) + each for each in PAYLOADS)
    (path := tmp_path / "0.wal").write_bytes(before)
    log = WriteAheadLog(tmp_path)
    assert [payload for _, payload in log.pending()] == PAYLOADS
    log.append([b"new"])
    log.close()
    content = path.read_bytes()
    assert rewritten(tmp_path, content[:8] + (len(content) - 16).to_bytes(8, "little") + content[16:]) == [b"new"]
    path.write_bytes(content)
    (tmp_path / "key").write_bytes(b"short")
    assert [payload for _, payload in reopened(tmp_path)] == [*PAYLOADS, b"new"]


@pytest.mark.parametrize("magic", [b"LGW1", b"LGW2"])
def test_the_remains_of_a_refused_write_are_no_record(tmp_path: pathlib.Path, magic: bytes) -> None:
    """A disk that rejects a write, and then its removal, leaves bytes that a sender chose."""
    WriteAheadLog(tmp_path).append([b"own"])
    forged = struct.pack("<4sIQ", magic, zlib.crc32(b"forged"), 6) + bytes(8 * (magic == b"LGW2")) + b"forged"
    (tmp_path / "0.wal").write_bytes((tmp_path / "0.wal").read_bytes() + forged)
    log = WriteAheadLog(tmp_path)
    assert list(log.pending()) == [(0, b"own")] and log.damaged == 1
    log.append([b"next"])
    log.close()
    assert reopened(tmp_path) == [(0, b"own"), (0, b"next")]


def test_a_damaged_record_of_a_log_without_its_key_is_counted(tmp_path: pathlib.Path) -> None:
    """What is behind it cannot be found, and may have been acknowledged."""
    log = WriteAheadLog(tmp_path)
    log.append([b"a" * 100, b"b" * 100, b"c" * 100])
    log.close()
    content = bytearray((tmp_path / "0.wal").read_bytes())
    content[content.index(b"bbbbb") + 5] ^= 4  # not the first: the code before it may end in this letter
    (tmp_path / "0.wal").write_bytes(content)
    (tmp_path / "key").unlink()
    log = WriteAheadLog(tmp_path)
    assert list(log.pending()) == [(0, b"a" * 100)] and log.damaged == 1
    log.close()


def test_a_key_that_cannot_be_read_is_not_replaced(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be right: the disk may answer again. The error names the file."""
    WriteAheadLog(tmp_path).append([b"own"])
    key, opened = (tmp_path / "key").read_bytes(), os.open

    def fail(path: pathlib.Path, flags: int, mode: int = 0o777) -> int:
        if path.name == "key":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, flags, mode)

    with monkeypatch.context() as patch, pytest.raises(LegatoError, match="key.*cannot be read: Input/output error"):
        patch.setattr(os, "open", fail)
        WriteAheadLog(tmp_path)
    assert (tmp_path / "key").read_bytes() == key and reopened(tmp_path) == [(0, b"own")]


@given(st.integers(0, 2**32))
def test_any_bytes_are_read_without_an_error(seed: int) -> None:
    """Random damage, and files of another program: only whole payloads that were appended are returned."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        log = WriteAheadLog(folder)
        appended = [rng.randbytes(rng.choice((0, 3, 40))) for _ in range(rng.randrange(6))]
        log.append(appended)
        log.close()
        content = bytearray((folder / "0.wal").read_bytes())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(content) + 1)
            content[at : at + rng.randrange(20)] = rng.randbytes(rng.randrange(20))
        (folder / "0.wal").write_bytes(content)
        assert not Counter(payload for _, payload in reopened(folder)) - Counter(appended)


@given(st.lists(st.sampled_from(["append", "store", "rotate", "crash"]), max_size=40))
def test_nothing_is_lost_in_any_order_of_calls(calls: list[str]) -> None:
    """What is appended and not stored is pending after every crash; what is stored comes back at most until its segment is empty."""
    with tempfile.TemporaryDirectory() as name:
        folder, log, waiting = pathlib.Path(name), WriteAheadLog(pathlib.Path(name)), list[tuple[int, bytes]]()
        for number, call in enumerate(calls):
            if call == "append":
                payload = b"%d" % number
                waiting.append((log.append([payload]), payload))
            elif call == "store" and waiting:
                log.stored(waiting.pop(0)[0], 1)
            elif call == "rotate":
                log.rotate()
            else:
                log.close()
                log = WriteAheadLog(folder)
                found = list(log.pending())
                assert set(waiting) <= set(found)
                waiting = found
        for segment, _ in waiting:
            log.stored(segment, 1)
        assert sizes(folder) == [0, 0, 0]
        log.close()


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync"])
def test_a_disk_that_rejects_writes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """The append fails as a whole, the payloads before are kept, and later ones replace what was written in part."""
    log = WriteAheadLog(tmp_path)
    log.append([b"before"])

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable, match="No space left"):
        patch.setattr(os, failing, fail)
        log.append([b"refused" * 5])
    log.append([b"after"])
    assert [payload for _, payload in reopened(tmp_path)][:2] == [b"before", b"after"]
    log.close()


def test_a_disk_that_rejected_writes_is_asked_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check fails while it rejects them, and costs nothing before and afterwards. It leaves no trace."""
    log, calls = WriteAheadLog(tmp_path), list[str]()
    log.append([b"before"])

    def fail(*_: object) -> None:
        calls.append("fdatasync")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    log.check()
    assert not calls
    for refused in (lambda: log.append([b"refused"]), log.check, log.check):
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            refused()
    monkeypatch.setattr(os, "fdatasync", calls.append)
    log.check()
    log.check()
    assert len(calls) == 5 and sizes(tmp_path)[0] == HEAD_BYTES + len(b"before")
    assert reopened(tmp_path) == [(0, b"before")]
    log.close()


def test_a_segment_that_cannot_be_emptied_is_emptied_later(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payloads are stored; no insert fails because of it, and nothing that comes later is lost."""
    log = WriteAheadLog(tmp_path)
    log.append([b"first"])
    log.rotate()

    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        log.append([b"second"])
        log.stored(0, 1)
        log.rotate()
        assert log.append([b"third"]) == 1
        assert sizes(tmp_path) == [HEAD_BYTES + 5, 2 * HEAD_BYTES + 11, 0]
    log.rotate()
    assert log.append([b"fourth"]) == 0 and sizes(tmp_path)[0] == HEAD_BYTES + 6
    assert reopened(tmp_path) == [(0, b"fourth"), (1, b"second"), (1, b"third")]
    log.close()


def test_what_cannot_be_inserted_is_set_aside(tmp_path: pathlib.Path) -> None:
    """It leaves its segment, which can then become empty, and is pending after the next start, however much there is."""
    log = WriteAheadLog(tmp_path)
    segment = log.append([b"poison", b"good"])
    log.stored(segment, 1)
    log.set_aside(segment, b"poison")
    assert reopened(tmp_path) == [(ASIDE, b"poison")] and sizes(tmp_path)[:2] == [0, 0]
    log.set_aside(ASIDE, b"poison")
    assert len(reopened(tmp_path)) == 1
    large = b"z" * (10 * 2**20)
    for _ in range(30):
        log.set_aside(log.append([large]), large)
        log.rotate()
    assert sizes(tmp_path)[:2] == [0, 0] and sizes(tmp_path)[ASIDE] > 300 * 2**20
    log.close()


def test_what_is_set_aside_at_the_start_replaces_nothing(tmp_path: pathlib.Path) -> None:
    """While the first payloads are read again, those that were set aside before have not been read."""
    log = WriteAheadLog(tmp_path)
    log.append([b"first", b"second"])
    log.set_aside(0, b"first")
    log.close()
    log = WriteAheadLog(tmp_path)
    for number, (segment, payload) in enumerate(log.pending()):
        if number == 0:
            log.set_aside(segment, payload)
    log.close()
    assert reopened(tmp_path)[-2:] == [(ASIDE, b"first"), (ASIDE, b"first")]


def test_the_files_are_of_this_user_alone(tmp_path: pathlib.Path) -> None:
    """They hold what senders sent. A link in their place is refused."""
    WriteAheadLog(tmp_path / "store" / "wal").close()
    assert [oct(path.stat().st_mode & 0o777) for path in sorted((tmp_path / "store" / "wal").iterdir())] == ["0o600"] * 4
    (tmp_path / "0.wal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        WriteAheadLog(tmp_path)


def test_commands_without_a_server_refuse_a_log_with_requests(tmp_path: pathlib.Path) -> None:
    """A backup or a copy would lack rows that were acknowledged. What was set aside does not stand in the way, and is reported."""
    expect_all_stored(tmp_path)
    assert left_aside(tmp_path) == ""
    log = WriteAheadLog(folder_of(tmp_path))
    segment = log.append([b"a"])
    with pytest.raises(LegatoError, match="start and stop `legato serve`"):
        expect_all_stored(tmp_path)
    assert left_aside(tmp_path) == ""
    log.set_aside(segment, b"a")
    expect_all_stored(tmp_path)
    assert "(at most 1)" in left_aside(tmp_path) and "aside.wal" in left_aside(tmp_path)
    log.close()
