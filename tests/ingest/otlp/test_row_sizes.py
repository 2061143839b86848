"""The bytes that rows will take, against the bytes that they take."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from helpers.builders.spans import native_span, request
from helpers.builders.worst_bodies import CASES
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request
from legato_ingest.otlp.batch import DAY_NS, Batch, Limits
from legato_ingest.otlp.budget import Budget, Place
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.otlp.signals import SPANS

NOW_NS = time.time_ns()


class _Counted(Budget):
    """A budget that adds up what is taken."""

    taken = 0

    def take(self, places: Sequence[Place], *, rows: int, row_bytes: int, item_bytes: int, chunks: int = 0) -> None:
        """Count instead of limiting."""
        type(self).taken += row_bytes + rows * self.tenant_bytes
        self.days.update({table: {first_ns // DAY_NS} for table, first_ns, _ in places})


def sizes(content: bytes) -> tuple[int, int]:
    """Return the bytes that are counted before the rows are made, and the bytes of the rows."""
    _Counted.taken = 0
    budget = _Counted.of(Limits(), len(content), "shop", NOW_NS)
    batch: Batch = convert_spans(SPANS.request.FromString(content), tenant="shop", now_ns=NOW_NS, limits=Limits(), budget=budget)
    return _Counted.taken, sum(table.nbytes for table in batch.tables if table.num_rows and "reason" not in table.column_names)


CASES_OF_ROWS = [
    "streams without chunks", "streams that share long texts", "streams of 65,536 chunks", "streams of 65,536 reads",
    "streams with different gaps", "flushes of 65,536 steps", "flushes with a long engine id", "flushes of one step", "finished requests",
    "silences",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES_OF_ROWS)
def test_no_row_takes_more_than_is_counted(case: str) -> None:
    """For each kind of row, at its worst."""
    counted, taken = sizes(CASES[case][1](NOW_NS, 3_000))
    assert 0 < taken <= 1.05 * counted


def test_usual_rows_are_counted_exactly() -> None:
    """Within a fifth, so that the budget of honest requests is not used up by the estimate."""
    body, rng = request(), random.Random(1)
    for _ in range(50):
        native_span(body, rng=rng, start_ns=NOW_NS - 10**9)
    made = [Step(number, NOW_NS - 10**9 + number, running=2) for number in range(400)]
    body.MergeFrom(steps_request(Engine("host:8000", 5), made, [FinishedRequest(number, f"r{number}") for number in range(100)]))
    counted, taken = sizes(body.SerializeToString())
    assert taken <= 1.02 * counted <= 1.25 * taken
