"""The rows of a body in one batch, for tests that need no second one, and small batches for those that need several."""

from __future__ import annotations

from typing import Any

import pytest

from legato_ingest.otlp import bodies, json_body, json_split, split
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.bodies import convert

__all__ = ["convert_body", "divide_bodies"]


def convert_body(content: bytes, **given: Any) -> Batch:
    """Return all batches of ``bodies.convert`` as one."""
    return Batch.joined(convert(content, **given))


def divide_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide bodies of any size, and make a batch of each five items."""
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(bodies, "_JSON_WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(json_body, "_WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(json_split, "_ITEMS_BYTES_MAX", 2_000)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", 5)
    monkeypatch.setattr(split, "PART_BYTES_MAX", 1)
