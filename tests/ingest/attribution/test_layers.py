"""The layers of attribution: the model is pure, loaders only load, rows are made without a store."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from helpers.repo.repository import ROOT

ROOM = ROOT / "ingest" / "legato_ingest" / "attribution"
MODEL, LOAD = "legato_ingest.attribution.model", "legato_ingest.attribution.load"
PURE = ("numpy", "legato_ingest.causes", "legato_ingest.definitions", "legato_ingest.timeline", MODEL)
MAY_IMPORT = {
    "model": PURE,
    "load": (*PURE, "pyarrow", LOAD, "legato_ingest.storage"),
    "verdict_rows.py": (*PURE, "pyarrow", "legato_ingest.columns"),
    "counterfactual_rows.py": (*PURE, "pyarrow", "legato_ingest.columns"),
}


def imported(path: pathlib.Path) -> Iterator[str]:
    """Yield the modules that a module imports, also inside functions, without the standard library."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "relative imports hide the layer"
            names = [node.module]
        yield from (name for name in names if name.split(".")[0] not in sys.stdlib_module_names)


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_what_it_may(layer: str) -> None:
    """The model imports nothing that reads a store, and nothing of the loaders."""
    paths = sorted((ROOM / layer).glob("*.py")) if (ROOM / layer).is_dir() else [ROOM / layer]
    assert paths
    allowed = MAY_IMPORT[layer]
    for path in paths:
        others = [name for name in imported(path) if not any(name == each or name.startswith(each + ".") for each in allowed)]
        assert others == [], path.name


def test_importing_the_model_loads_no_driver() -> None:
    """Not indirectly either: in a fresh process neither the store's driver nor Arrow is loaded."""
    modules = [f"{MODEL}.{path.stem}" for path in sorted((ROOM / "model").glob("*.py")) if path.stem != "__init__"]
    code = f"import sys, {', '.join(modules)}; print(sorted({{'clickhouse_connect', 'chdb', 'pyarrow'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
