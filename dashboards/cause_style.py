"""The colours of causes in panels, the same in all of them, from the table of causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.models import dashboard as shapes

from legato_ingest.causes import CAUSES

__all__ = ["GAP_CAUSES", "cells_by_cause", "order_of_causes", "series_by_cause"]

GAP_CAUSES = tuple(cause for cause in CAUSES if cause.group != "no gap")
"""The causes that a verdict can name."""


def series_by_cause(panel: Any) -> Any:
    """Give each cause's series its colour. Grafana names a series by its label, or by the value's column and the label."""
    for cause in GAP_CAUSES:
        color = shapes.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": cause.color})
        panel = panel.override_by_regexp(f"/(^| ){cause.name}$/", [color])
    return panel


def cells_by_cause(panel: Any, columns: Sequence[str]) -> Any:
    """Give the cells of these columns the colours of the causes in them."""
    colors = {cause.name: {"color": cause.color, "index": number} for number, cause in enumerate(GAP_CAUSES)}
    for column in columns:
        panel = panel.override_by_name(
            column,
            [
                shapes.DynamicConfigValue("mappings", [{"type": "value", "options": colors}]),
                shapes.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
            ],
        )
    return panel


def order_of_causes(column: str = "cause") -> str:
    """Return an expression in SQL that orders rows as the table of causes does."""
    names = ", ".join(f"'{cause.name}'" for cause in GAP_CAUSES)
    return f"indexOf([{names}], {column})"
