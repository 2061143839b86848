"""The reads of a stream that wait for their parsing, and the bound on what they hold in the whole process.

A server decides how much arrives, and the worker works in slices, so without a bound the unparsed reads of one endless response would fill
the memory. Each read is paid with pages of a common stock, once reads have filled a page. A stream may hold as many pages as are left for
all others, so that one fast response leaves room for the rest. A read that cannot be paid is folded: only its time and its size are kept.
A stream may hold three times as many pages as are left, if the further ones are for folded reads. If even that cannot be paid, the read is
counted. ``OWN_PAGES`` of each stream are paid on credit where the stock is empty, so that neither floods nor the number of streams fold
what a usual response sends within a second. Nothing here waits: taking from a deque and adding to it are atomic, so there is no lock that
a fork could copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

from legato._errors import warn_once
from legato._exits import after_fork
from legato._tally import tally

__all__ = [
    "OWN_PAGES", "PAGE_BYTES", "READ_BYTES", "UNPARSED_BYTES_MAX", "Folded", "Unparsed", "adding", "cost_of", "heavy_pages",
    "is_short", "note_folded",
]  # fmt: skip

UNPARSED_BYTES_MAX = 1 << 23
"""The most bytes of unparsed reads in the process, besides less than a page and ``OWN_PAGES`` for each stream."""
PAGE_BYTES = 1 << 14
OWN_PAGES = 2
"""So many pages each stream may always hold."""
# Of the pages that are left for all others, a stream may hold so many times as many: of whole reads, and with folded ones.
_SHARE, _SHARE_FOLDED = 1, 3
READ_BYTES = 256
"""What each read counts with besides its bytes: a tuple, a time, the head of a bytes object, and its hold."""
# Of an object of a client library, which is measured later: its fields are not looked at here.
_OBJECT_BYTES = 2048
_HEAVY_PAGES = 4
_stock: deque[None] = deque()


class Folded(int):
    """The size of a read of which nothing else is kept. An iterator of an application may have whole numbers as items."""

    follows_gap = False
    """Whether reads before it were lost."""


def _refill() -> None:
    """Make the stock anew. Streams of a parent return their pages to the stock from which they have them."""
    global _stock
    _stock = deque(repeat(None, UNPARSED_BYTES_MAX // PAGE_BYTES))


_refill()
after_fork(_refill)


def is_short() -> bool:
    """Whether so many pages are taken that parsing should hurry."""
    return len(_stock) * PAGE_BYTES < UNPARSED_BYTES_MAX * 3 // 4


def heavy_pages() -> int:
    """Return how many pages a running stream may hold until it is parsed at the worker's next look: where pages are short, none."""
    return 1 if is_short() else _HEAVY_PAGES


def note_folded() -> None:
    """Count a stream that has folded reads, and log once what that is."""
    tally.add("folded")
    warn_once(
        "folded",
        "a response arrived faster than it could be parsed: of the reads that did not fit into %d MiB, only times and sizes are recorded. "
        "Such streams are counted in legato.stats()['folded'].",
        UNPARSED_BYTES_MAX >> 20,
    )


def cost_of(item: Any) -> int:
    """Return the bytes that an item of an iterator counts with, besides ``READ_BYTES``. No code of the item's class runs."""
    kind = type(item)
    if kind is str or kind is bytes:
        return len(item)
    return str.__len__(item) if issubclass(kind, str) else bytes.__len__(item) if issubclass(kind, bytes) else _OBJECT_BYTES


def adding(unparsed: Unparsed, cost: Callable[[Any], int]) -> Callable[[tuple[int, Any]], None]:
    """Return a function that keeps a read. It is called at each read, so its state is where Python finds it first.

    ``cost`` returns the bytes that the data of a read count with: `len` for bytes, `cost_of` for an item of an iterator.
    """
    append, pay, room = unparsed.append, unparsed.pay, PAGE_BYTES

    def add(read: tuple[int, Any]) -> None:
        nonlocal room
        room -= cost(read[1]) + READ_BYTES
        if room > 0:
            append(read)
        else:
            room = pay(read, room)

    return add


class Unparsed:
    """The reads of one stream. ``append`` and ``pay`` are for the thread that reads, the rest is for the worker.

    The reader counts its room down from a page. While there is some, it appends its reads; else it pays. ``reads``: the time of each read,
    and its bytes; ``Folded``, if it was folded. ``folded``: the number of folded reads. ``lost``, ``lost_bytes``, ``lost_ns``: number and
    bytes of the reads that were only counted, and the time of the last of them. The read after them is folded, so that the gap is noticed.
    ``size_of``: measures an item that is folded.
    """

    __slots__ = (
        "_fold_room", "_is_closed", "_must_fold", "_owed", "_parsed", "_repaid", "_returned", "_size_of", "_stock", "_taken", "append",
        "folded", "lost", "lost_bytes", "lost_ns", "reads",
    )  # fmt: skip

    def __init__(self, size_of: Callable[[Any], int] = len) -> None:
        self.reads: deque[tuple[int, Any]] = deque()
        self.append = self.reads.append
        self._size_of = size_of
        self._stock = _stock
        # Pages taken by the reader; pages returned, and bytes parsed since, by the worker.
        self._taken = self._returned = self._parsed = 0
        # Of these, pages on credit, by the reader; those that were not put into the stock for that, by the worker.
        self._owed = self._repaid = 0
        # What is left of a page that was taken for folded reads.
        self._fold_room = 0
        self.folded = self.lost = self.lost_bytes = self.lost_ns = 0
        # Whether a read was lost, and none was kept since.
        self._must_fold = self._is_closed = False

    def __del__(self) -> None:
        self._return(self._taken - self._returned)

    @property
    def pages(self) -> int:
        """The pages that the stream holds."""
        return self._taken - self._returned

    @property
    def is_in_gap(self) -> bool:
        """Whether reads were lost and nothing was kept since. What is kept next is a folded read, which shows the gap in its place."""
        return self._must_fold

    def pay(self, read: tuple[int, Any], room: int) -> int:
        """Pay for what was kept, and for this read, which left so much room: none. Keep it, and return the room for the next."""
        pages = 1 if room > -PAGE_BYTES else (PAGE_BYTES - room) // PAGE_BYTES
        if not self._must_fold and self._take(pages, _SHARE):
            self.append(read)
            # No more reads are folded for now.
            room, self._fold_room = room + self._fold_room, 0
            return room + pages * PAGE_BYTES
        return self._fold(read[0], self._size_of(read[1]), room + cost_of(read[1]) + READ_BYTES)

    def _fold(self, time_ns: int, size: int, room: int) -> int:
        """Keep time and size of a read; ``room`` is what was left before it, and what is left of that is returned."""
        if room > READ_BYTES:
            room -= READ_BYTES
        elif not self._is_closed and (self._fold_room >= READ_BYTES or self._take(1, _SHARE_FOLDED)):
            # The rest of the page pays for no whole reads, which would take it all.
            self._fold_room += -READ_BYTES if self._fold_room >= READ_BYTES else PAGE_BYTES - READ_BYTES
        else:
            # There is less room than any read takes, so the next one comes here, too.
            self._must_fold = True
            self.lost, self.lost_bytes, self.lost_ns = self.lost + 1, self.lost_bytes + size, time_ns
            return room
        read = Folded(size)
        if self._must_fold:
            read.follows_gap = True
        self._must_fold = self._is_closed
        self.folded += 1
        self.append((time_ns, read))
        return room

    def _take(self, pages: int, share: int) -> bool:
        """Take so many pages; none if this stream would then hold more than this many times those that are left."""
        stock, number, after = self._stock, 0, self._taken - self._returned + pages
        is_own = after <= OWN_PAGES
        if not is_own and after > share * (len(stock) - pages):
            return False
        try:
            while number < pages:
                stock.pop()
                number += 1
        except IndexError:
            if not is_own:
                stock.extend(repeat(None, number))
                return False
            # Before the pages are counted: the worker must not return them to the stock.
            self._owed += pages - number
        self._taken += pages
        return True

    def _return(self, pages: int) -> None:
        owed = min(pages, self._owed - self._repaid)
        self._repaid += owed
        self._stock.extend(repeat(None, pages - owed))

    def parsed(self, cost: int) -> None:
        """Return the pages of reads that were parsed; ``cost``: the sum of their ``cost_of``."""
        self._parsed += cost
        pages = min(self._parsed // PAGE_BYTES, self.pages)
        if pages > 0:
            self._parsed -= pages * PAGE_BYTES
            self._returned += pages
            self._return(pages)

    def close(self) -> None:
        """The stream has ended: forget what is left, and keep no more than a page of what is still read."""
        self._is_closed = self._must_fold = True
        self.reads.clear()
        pages = self.pages
        self._returned += pages
        self._return(pages)
