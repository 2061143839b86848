"""Legato's dashboards as they lie in a folder: what each file holds, and all that it asks of the store.

One idea: a dashboard is data. Its panels, annotations and variables are statements that can be asked one by one, with every variable at its
default. It reads files, and talks to no Grafana. Source: Grafana's classic dashboard model (schemaVersion 42).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.cli.grafana.macros import MacroError, with_variables
from legato_ingest.errors import LegatoError

__all__ = ["Question", "load", "questions"]

Json = dict[str, Any]
_SCHEMA_MAX = 42
_UID_CHARACTERS_MAX = 40
_TABLE = 1


@dataclass(frozen=True, slots=True)
class Question:
    """One statement of a dashboard. ``target``: as the plugin takes it, variables filled in; ``error``: why they could not be."""

    uid: str
    dashboard: str
    kind: str
    name: str
    target: Json
    error: str = ""


def load(folder: pathlib.Path) -> list[Json]:
    """The dashboards of a folder (`legato-*.json`), by their files' names. Raises ``LegatoError``."""
    boards = [_board(path) for path in sorted(folder.glob("legato-*.json"))]
    if not boards:
        raise LegatoError(
            f"no dashboards in {folder}, expected legato-*.json: set LEGATO_DASHBOARDS_DIR to the folder dashboards/ of Legato's repository"
        )
    uids = [board["uid"] for board in boards]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        raise LegatoError(f"several dashboards in {folder} have the uid {twice[0]}, expected one each: remove the copy")
    return boards


def _board(path: pathlib.Path) -> Json:
    try:
        board = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LegatoError(f"{path} cannot be read as JSON ({error}): `python -m dashboards` writes it anew") from None
    if not isinstance(board, dict) or "spec" in board or not isinstance(board.get("panels"), list):
        raise LegatoError(f"{path} is no classic dashboard (an object with panels), which Grafana 11.6 to 13 all take: export it as such")
    uid, title, version = board.get("uid"), board.get("title"), board.get("schemaVersion")
    if not isinstance(uid, str) or not 0 < len(uid) <= _UID_CHARACTERS_MAX or not isinstance(title, str) or not title:
        raise LegatoError(f"{path} needs a title and a uid of at most {_UID_CHARACTERS_MAX} characters, and has {uid!r} and {title!r}")
    if not isinstance(version, int) or version > _SCHEMA_MAX:
        raise LegatoError(f"{path} has schemaVersion {version!r}, expected at most {_SCHEMA_MAX}: it is of a newer Legato; update this one")
    return board


def questions(board: Json) -> Iterator[Question]:
    """All that a dashboard asks: variables, annotations, panels (those in rows too)."""
    chosen = _defaults(board)
    for kind, name, target in _targets(board):
        try:
            filled, error = with_variables(target["rawSql"], chosen), ""
        except MacroError as failed:
            filled, error = target["rawSql"], str(failed)
        yield Question(board["uid"], board["title"], kind, name, {**target, "rawSql": filled}, error)


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
        # Those of a row that is folded.
        yield from _panels(panel.get("panels") or ())


def _listed(board: Json, name: str) -> Sequence[Json]:
    return (board.get(name) or {}).get("list") or ()


def _defaults(board: Json) -> dict[str, str | list[str]]:
    """What each variable stands at when the dashboard is opened; one that says nothing stands at "All"."""
    made: dict[str, str | list[str]] = {}
    for variable in _listed(board, "templating"):
        value = (variable.get("current") or {}).get("value", variable.get("query") if variable.get("type") == "textbox" else None)
        if isinstance(value, list):
            made[variable["name"]] = [str(each) for each in value]
        elif value is not None:
            made[variable["name"]] = str(value)
    return made
