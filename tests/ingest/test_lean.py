"""Processes of Legato do not import pandas, which takes 35 MB in each."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRINT = "import sys; print('pandas' in sys.modules)"


def run(*arguments: str) -> str:
    """Run Python and return what it printed."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("module", ["pyarrow", "clickhouse_connect", "legato_ingest.storage.chdb"])
def test_libraries_work_without_pandas(module: str) -> None:
    """Those that import it elsewhere do not here, and convert arrays."""
    assert run("-c", f"import {module}, pyarrow; pyarrow.array([1]); {PRINT}") == "True"
    assert run("-c", f"import legato_ingest.__main__, {module}, pyarrow; pyarrow.array([1]); {PRINT}") == "False"


def test_a_module_runs_with_its_arguments() -> None:
    """As with `python -m`, and an import of pandas fails as if it were not installed."""
    assert run("-m", "legato_ingest.lean", "json.tool", "--help").startswith("usage:")
    failing = "try:\n import legato_ingest.__main__, pandas\nexcept ModuleNotFoundError as error:\n print(error.name)"
    assert run("-c", failing) == "pandas"
