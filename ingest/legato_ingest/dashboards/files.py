"""Read Legato's dashboards from a folder, and list their queries.

A dashboard is data: its panels, annotations and variables are queries that can run one by one, with every variable at its default. This
module reads files and sends nothing to Grafana. Source: Grafana's classic dashboard model (schemaVersion 42).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.dashboards.macros import MacroError, with_variables
from legato_ingest.errors import LegatoError

__all__ = ["DashboardQuery", "Json", "load", "queries"]

Json = dict[str, Any]
_SCHEMA_MAX = 42
_UID_CHARACTERS_MAX = 40
_TABLE = 1


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """One query of a dashboard. ``target``: in the plugin's form, with variables expanded; ``error``: why they could not be expanded."""

    uid: str
    dashboard: str
    kind: str
    name: str
    target: Json
    error: str = ""


def load(folder: pathlib.Path) -> list[Json]:
    """Return the dashboards of a folder (`legato-*.json`), ordered by file name. Raises ``LegatoError``."""
    boards = [_board(path) for path in sorted(folder.glob("legato-*.json"))]
    if not boards:
        raise LegatoError(
            f"no dashboards in {folder}, expected legato-*.json: set LEGATO_DASHBOARDS_DIR to the folder dashboards/ of Legato's repository"
        )
    uids = [board["uid"] for board in boards]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        raise LegatoError(f"several dashboards in {folder} have the uid {twice[0]}, expected different uids: remove the copy")
    return boards


def _board(path: pathlib.Path) -> Json:
    try:
        board = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LegatoError(f"{path} cannot be read as JSON ({error}): rebuild it with `python -m dashboards`") from None
    if not isinstance(board, dict) or "spec" in board or not isinstance(board.get("panels"), list):
        raise LegatoError(
            f"{path} is not a classic dashboard (an object with panels), the format of Grafana 11.6 to 13: export it in this format"
        )
    uid, title, version = board.get("uid"), board.get("title"), board.get("schemaVersion")
    if not isinstance(uid, str) or not 0 < len(uid) <= _UID_CHARACTERS_MAX or not isinstance(title, str) or not title:
        raise LegatoError(f"{path} needs a title and a uid of at most {_UID_CHARACTERS_MAX} characters, but has {uid!r} and {title!r}")
    if not isinstance(version, int) or version > _SCHEMA_MAX:
        raise LegatoError(
            f"{path} has schemaVersion {version!r}, expected at most {_SCHEMA_MAX}: the file is from a newer Legato; upgrade this one"
        )
    return board


def queries(board: Json) -> Iterator[DashboardQuery]:
    """Yield all queries of a dashboard: variables, annotations, panels (including panels in rows)."""
    chosen = _defaults(board)
    for kind, name, target in _targets(board):
        try:
            filled, error = with_variables(target["rawSql"], chosen), ""
        except MacroError as failed:
            filled, error = target["rawSql"], str(failed)
        yield DashboardQuery(board["uid"], board["title"], kind, name, {**target, "rawSql": filled}, error)


def _targets(board: Json) -> Iterator[tuple[str, str, Json]]:
    for variable in _listed(board, "templating"):
        if variable.get("type") == "query" and isinstance(variable.get("query"), dict):
            source = {"datasource": variable.get("datasource"), "format": _TABLE}
            yield "variable", variable["name"], {"refId": variable["name"], **source, **variable["query"]}
    for annotation in _listed(board, "annotations"):
        target = annotation.get("target") or {}
        if target.get("rawSql"):
            yield "annotation", annotation["name"], {"refId": "Anno", "datasource": annotation.get("datasource"), **target}
    for panel in _panels(board["panels"]):
        for target in panel.get("targets") or ():
            if target.get("rawSql") and not target.get("hide"):
                yield "panel", panel.get("title") or f"panel {panel.get('id')}", {"datasource": panel.get("datasource"), **target}


def _panels(panels: Sequence[Json]) -> Iterator[Json]:
    for panel in panels:
        yield panel
        # The panels of a collapsed row.
        yield from _panels(panel.get("panels") or ())


def _listed(board: Json, name: str) -> Sequence[Json]:
    return (board.get(name) or {}).get("list") or ()


def _defaults(board: Json) -> dict[str, str | list[str]]:
    """The value of each variable when the dashboard is opened; a variable without a value is at "All"."""
    made: dict[str, str | list[str]] = {}
    for variable in _listed(board, "templating"):
        value = (variable.get("current") or {}).get("value", variable.get("query") if variable.get("type") == "textbox" else None)
        if isinstance(value, list):
            made[variable["name"]] = [str(each) for each in value]
        elif value is not None:
            made[variable["name"]] = str(value)
    return made
