"""One run over the store: load, judge, write. A stream that cannot be judged costs no other stream."""

from __future__ import annotations

import pytest

from helpers.builders.judging import put_all
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store


def test_streams_that_cannot_be_judged_are_left_out_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that always fails must not keep later streams from being judged."""
    put_all(store)
    metrics = Metrics()
    judge = AttributionWorker(store, load(attribute_grace_s=0), metrics)
    with monkeypatch.context() as broken:
        broken.setattr("legato_ingest.attribution.judging.judge", lambda *_: 1 / 0)
        judge.step()
    assert metrics.errors.labels("attribute", "ZeroDivisionError")._value.get() == 1
    assert judge.step().streams == 0, "the next run continues after them"
    assert judge.again(0)["verdicts"] == 1
