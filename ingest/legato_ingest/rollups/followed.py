"""Up to which times the workers have followed the rows of the store, and whether there are later ones.

Rows that are written later need later times. The module writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from legato_ingest.periodic import always
from legato_ingest.rollups.backlog import Progress
from legato_ingest.storage import Store

__all__ = ["Stamps", "followed_until_ms", "judgements_followed_until_ms"]

# The rollups of new streams wait so long for their verdicts. Computed before, they would be computed again for the verdicts.
_JUDGED_MS = 5_000
# Without readers they also wait for the next insert, for so long at most: a run over two inserts costs little more than a run over one.
_UNREAD_MS = 50_000
# The last insert is recent for so long. A running stream is abandoned 30 s after its next report was due, and its end may wait in the log.
_FRESH_MS = 20_000


@dataclass(frozen=True, slots=True)
class Stamps:
    """The times of the inserts of the only process that writes into a store (Unix ms).

    ``received_after`` and ``judged_after`` return that of the first insert of received rows, and of verdicts, later than a time; ``None``:
    there was none. ``streams_judged_ms`` returns until when the streams that were received are judged. ``insert_waiting`` inserts what was
    acknowledged. ``is_read`` returns whether a reader may wait for the rollups.
    """

    received_after: Callable[[int], int | None]
    judged_after: Callable[[int], int | None]
    streams_judged_ms: Callable[[], int]
    insert_waiting: Callable[[], None]
    is_read: Callable[[], bool] = always

    def refresh(self, reached_ms: int) -> None:
        """Insert what waits, unless the last insert is recent: a stream with its end in the log would be taken for an abandoned one.

        ``reached_ms``: as for ``news_in_s``.
        """
        if self.received_after(reached_ms - _FRESH_MS) is None:
            self.insert_waiting()

    def news_in_s(self, looked: Progress, reached_ms: int) -> float | None:
        """Return in how many seconds the rows since the last look are to be rolled up; ``None``: there are none.

        Where attribution keeps up, rows that were just received wait until their streams are judged, for some seconds at most. Without
        readers they first wait for the next insert. ``reached_ms``: the watermark of received rows, a clock that is never set back.
        """
        received_ms, judged_ms = self.received_after(looked[0]), self.streams_judged_ms()
        if received_ms is None:
            return None if self.judged_after(looked[1]) is None else 0.0
        last_ms = received_ms if self.is_read() else self.received_after(received_ms) or received_ms + _UNREAD_MS
        return max(0.0, (last_ms + _JUDGED_MS - reached_ms) / 1000) if looked[0] <= judged_ms < last_ms else 0.0


def followed_until_ms(store: Store) -> int:
    """Return the latest receive time (Unix ms) that any worker may have processed.

    New rows need later times, even if the clock was set back. Workers of a server's store may be ahead of the progress that they recorded,
    but not of all `writers`.
    """
    columns = (("attribution_runs", "others_until"), ("rollup_runs", "until"), ("writers", "settled_at"))
    return _latest_ms(store, columns)


def judgements_followed_until_ms(store: Store) -> int:
    """Return the latest judgement time (Unix ms) that the rollups may have processed. New verdicts need later times."""
    return _latest_ms(store, (("rollup_runs", "judged_until"), ("writers", "judged_until")))


def _latest_ms(store: Store, columns: tuple[tuple[str, str], ...]) -> int:
    return max(int(store.select(f"SELECT toUnixTimestamp64Milli(max({column})) FROM {table}")[0][0]) for table, column in columns)
