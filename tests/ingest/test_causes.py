"""The table of causes: consistent in itself, the only list of causes in the code, and the table of the documentation."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from helpers.repo.repository import ROOT
from legato_ingest import causes
from legato_ingest.causes import CAUSES, NAMES, PARTS, excluded_when, index_of, sql_list

TABLE = ROOT / "ingest" / "legato_ingest" / "causes.py"
MODULES = sorted(
    path for folder in ("ingest/legato_ingest", "dashboards", "bench") for path in (ROOT / folder).rglob("*.py") if path != TABLE
)
NAMES_MAX = 2


def test_every_cause_is_complete_and_distinct() -> None:
    """Each has a separate name, label and colour, and one sentence. Time is charged to the causes that attribution can find."""
    for field in ("name", "label", "color"):
        assert len({getattr(cause, field) for cause in CAUSES}) == len(CAUSES), field
    for cause in CAUSES:
        assert re.fullmatch(r"[a-z_]+", cause.name) and re.fullmatch(r"#[0-9A-F]{6}", cause.color)
        assert cause.meaning and ". " not in cause.meaning and not cause.meaning.endswith(".")
        assert cause.is_part == (cause.group not in ("several", "no gap"))


def test_stored_names_keep_their_order() -> None:
    """The columns of ``Verdicts.parts``, as they were before the table."""
    first = "base scheduling kv_pressure gpu_clock host front_end coalescing connection slow_reader consumer generation delivery unknown"
    assert " ".join(PARTS) == first and NAMES[: len(PARTS)] == PARTS
    assert [index_of(name) for name in PARTS] == list(range(len(PARTS)))
    with pytest.raises(ValueError, match="tuple.index"):
        index_of("mixed")


def test_groups_follow_from_the_rows() -> None:
    """Error budgets, replayable causes, and causes that name no event."""
    assert set(causes.END_USER) == {"slow_reader", "consumer", "render"} and causes.NETWORK_PATH == ("connection",)
    assert causes.CORE == ("scheduling", "kv_pressure", "gpu_clock", "host") and causes.STEP_PARTS == ("base", *causes.CORE)
    assert causes.REPLAYABLE == (*causes.CORE, "front_end", "coalescing", "connection", "slow_reader", "consumer")
    assert causes.COARSE == ("generation", "delivery", "mixed") and causes.UNEXPLAINED == ("generation", "delivery", "unknown")
    assert excluded_when("no hold") == {"consumer": "the application did not hold the stream"}


def test_names_in_sql_are_literals() -> None:
    """In parentheses, for ``IN``; also a single one."""
    assert sql_list(("a", "b")) == "('a', 'b')" and sql_list(["a"]) == "('a')"


def literals(path: pathlib.Path) -> Iterator[tuple[int, set[str]]]:
    """The names of causes in each literal of a module: the elements of a collection, and the words in quotes in a text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            elements = node.elts
        elif isinstance(node, ast.Dict):
            elements = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, set(re.findall(r"'([a-z_]+)'", node.value)) & set(NAMES)
            continue
        else:
            continue
        yield node.lineno, {each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, str)} & set(NAMES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_lists_causes(path: pathlib.Path) -> None:
    """A list of more than two is a second table, which a new cause would be missing in."""
    assert {line: names for line, names in literals(path) if len(names) > NAMES_MAX} == {}


def test_the_documentation_has_the_table() -> None:
    """docs/concepts.md: name, meaning and evidence of every cause that a verdict can name, in the order of the table."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("| cause | meaning | evidence that it needs |\n|---|---|---|\n")
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in rest.partition("\n\n")[0].splitlines()]
    assert rows == [(f"`{cause.name}`", cause.meaning, cause.needs) for cause in CAUSES if cause.group != "no gap"]


WITH_ANOTHER_ROW = """
import importlib.util, pathlib, sys
row = 'Cause(name="cosmic_ray", label="cosmic ray", meaning="a bit flipped", needs="luck", color="#123456", group="client",' \\
    ' confidence="likely", excluded_by=(("no hold", "no ray was seen"),), replay="delay", budget="end user"),'
path = pathlib.Path(sys.argv[1])
text = path.read_text(encoding="utf-8").replace('Cause(\\n        name="generation"', row + '\\n    Cause(\\n        name="generation"')
spec = importlib.util.spec_from_loader("legato_ingest.causes", loader=None)
table = sys.modules["legato_ingest.causes"] = importlib.util.module_from_spec(spec)
exec(compile(text, str(path), "exec"), table.__dict__)

import numpy as np
from dashboards.alerts import burn, rules
from dashboards.boards import attribution
from helpers.builders.attribution import client_gap, joined, verdict
from legato_ingest.attribution.model.confidence import confidences
from legato_ingest.attribution.model.exclusion import excluded_by_records
from legato_ingest.rollups import queries
from grafana_foundation_sdk.cog.encoder import JSONEncoder

own = verdict("cosmic_ray", {"cosmic_ray": 400})
no = np.array([False])
assert own.names() == ["cosmic_ray"] and confidences(["cosmic_ray"], own, no, joined(None), [{}], no, no) == ["likely"]
gap, other = client_gap(400, hold_known=True), verdict("unknown", {"unknown": 400})
assert excluded_by_records(gap, other, np.array([0]), joined(None))[0]["cosmic_ray"] == "no ray was seen"
assert "cosmic_ray" in table.REPLAYABLE and "'cosmic_ray'" in str(queries.STREAM_ROLLUPS)
assert "'cosmic_ray'" in burn.ITL and "'cosmic_ray'" in burn.END_USERS and "cosmic ray (cosmic_ray)" in str(rules.RULES)
board = JSONEncoder().encode(attribution.board().build())
assert board.count("#123456") == 7 and "a bit flipped" in board
"""


def test_a_cause_is_added_by_a_row() -> None:
    """Attribution, rollups, alerts and panels know a cause that only the table has."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests"), *sys.path))
    command = [sys.executable, "-W", "ignore", "-c", WITH_ANOTHER_ROW, str(TABLE)]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
