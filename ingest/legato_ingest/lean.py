"""A process without pandas: `python -m legato_ingest.lean MODULE ARGUMENTS` runs a module like `python -m`.

Where pandas is installed, and chDB's package installs it, pyarrow and clickhouse-connect import it: 35 MB and 0.3 s in each process of
`legato serve`, which uses nothing of it. Both work without it. The module imports nothing of Legato, so that it comes first.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["without_pandas"]


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raise ``ModuleNotFoundError`` for pandas, and leave all other modules to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is not imported in processes of Legato (legato_ingest.lean)", name=name)
        return None


def without_pandas() -> None:
    """Let imports of pandas fail in this process, as if it were not installed."""
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())


def _main() -> None:
    without_pandas()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
