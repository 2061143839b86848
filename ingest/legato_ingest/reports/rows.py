"""The types between a report and its caller. This module runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from legato_ingest.quoting import Value

__all__ = ["Row", "Run"]

Row = Mapping[str, Any]
"""A row by column name."""
Run = Callable[[str, Mapping[str, Value]], list[dict[str, Any]]]
"""Returns the rows of a read-only statement with these parameters; an unused parameter is ignored. It raises the caller's errors."""
