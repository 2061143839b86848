"""The query type of Grafana's ClickHouse plugin, which Grafana's SDK does not define.

A panel's target is its SQL and the format of its rows. Source: grafana-clickhouse-datasource 4.20, `CHQuery`.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.common import DataSourceRef

__all__ = ["DATASOURCE", "PLUGIN", "TABLE", "TIME_SERIES", "ClickHouseQuery", "Query"]

PLUGIN = "grafana-clickhouse-datasource"
PLUGIN_VERSION = "4.20.0"
DATASOURCE = DataSourceRef(type_val=PLUGIN, uid="legato")
TIME_SERIES, TABLE = 0, 1


class ClickHouseQuery(Dataquery):
    """One target. ``format``: ``TIME_SERIES`` (a time column, ascending; string columns become labels) or ``TABLE``."""

    def __init__(self, sql: str, form: int, ref_id: str = "A") -> None:
        self.sql, self.form, self.ref_id = sql, form, ref_id
        self.hide: bool | None = None

    def to_json(self) -> dict[str, object]:
        """Return the query in the plugin's format."""
        return {
            "refId": self.ref_id,
            "datasource": DATASOURCE,
            "editorType": "sql",
            "rawSql": self.sql,
            "format": self.form,
            "queryType": "timeseries" if self.form == TIME_SERIES else "table",
            "pluginVersion": PLUGIN_VERSION,
            "meta": {"timezone": "UTC"},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClickHouseQuery:
        """Parse the output of ``to_json``."""
        return cls(data["rawSql"], data["format"], data["refId"])


class Query(Builder[ClickHouseQuery]):
    """Builds a target."""

    def __init__(self, sql: str, form: int, ref_id: str = "A") -> None:
        self._query = ClickHouseQuery(sql, form, ref_id)

    def build(self) -> ClickHouseQuery:
        """Return the target."""
        return self._query
