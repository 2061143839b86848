"""The SQL of a dashboard: found by panel, variable or annotation, and expanded for a time range and values of the variables.

The page sends names and values, never SQL, for what a dashboard shows, so that each panel runs the statement of its JSON. The module runs
no statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from legato_ingest.dashboards.macros import Range, expand
from legato_ingest.errors import BadRequest

__all__ = ["MS_MAX", "Boards", "PanelQuery"]

Json = dict[str, Any]
# The order of the menu: what a user opens first, then what explains it, then the installation itself.
_ORDER = ("streams", "now", "attribution", "compare", "itl", "nodes", "stream", "chunking", "cost", "runbook", "self")
MS_MAX = 32_503_680_000_000
"""The latest end of a time range in ms since the epoch: the year 3000."""
_VALUES_MAX = 1_000


class PanelQuery(BaseModel):
    """A query of a dashboard: what it belongs to, the time range in ms since the epoch, and the values of the variables.

    ``kind``: ``panel`` with ``name`` = "PANEL ID/REF", ``variable`` or ``annotation`` with its name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dashboard: str = Field(max_length=64)
    kind: str = Field(pattern="^(panel|variable|annotation)$")
    name: str = Field(max_length=128)
    from_ms: int = Field(ge=0, le=MS_MAX)
    to_ms: int = Field(ge=0, le=MS_MAX)
    interval_ms: int = Field(60_000, ge=1_000, le=86_400_000 * 366)
    variables: dict[str, list[str]] = Field(default_factory=dict, max_length=64)


class Boards:
    """The dashboards of a folder, by uid, in the order of the menu; dashboards of users come last."""

    def __init__(self, boards: Sequence[Json]) -> None:
        places = {f"legato-{name}": place for place, name in enumerate(_ORDER)}
        ordered = sorted(boards, key=lambda board: places.get(board["uid"], len(places)))
        self.by_uid: Mapping[str, Json] = {board["uid"]: board for board in ordered}

    def listed(self) -> list[Json]:
        """Return uid, title and description of each dashboard."""
        return [{name: board.get(name, "") for name in ("uid", "title", "description")} for board in self.by_uid.values()]

    def statement(self, query: PanelQuery) -> str:
        """Return the SQL of a query, expanded. Raises ``BadRequest`` (404) if the dashboard has no such query."""
        board = self.by_uid.get(query.dashboard)
        if board is None:
            raise BadRequest(f"no dashboard {query.dashboard!r}: expected one of {', '.join(self.by_uid)}", 404)
        sql = dict(_statements(board)).get((query.kind, query.name))
        if sql is None:
            raise BadRequest(f"the dashboard {query.dashboard} has no {query.kind} {query.name!r}", 404)
        if any(len(values) > _VALUES_MAX for values in query.variables.values()):
            raise BadRequest(f"a variable has more than {_VALUES_MAX} values: choose fewer, or All")
        values = {name: [*chosen] for name, chosen in query.variables.items()}
        return expand(sql, Range(query.from_ms, query.to_ms, query.interval_ms), values)


def _statements(board: Json) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the statements of a dashboard by kind and name."""
    for variable in (board.get("templating") or {}).get("list") or ():
        if variable.get("type") == "query" and isinstance(variable.get("query"), dict):
            yield ("variable", variable["name"]), variable["query"]["rawSql"]
    for annotation in (board.get("annotations") or {}).get("list") or ():
        if (annotation.get("target") or {}).get("rawSql"):
            yield ("annotation", annotation["name"]), annotation["target"]["rawSql"]
    for panel in _panels(board["panels"]):
        for target in panel.get("targets") or ():
            if target.get("rawSql") and not target.get("hide"):
                yield ("panel", f"{panel['id']}/{target['refId']}"), target["rawSql"]


def _panels(panels: Sequence[Json]) -> Iterator[Json]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels") or ())
