"""Hatch build hook: packs the SQL of `schema/` and the JSON and SQL of `dashboards/` as package data of `legato_ingest`.

Both folders are outside of `ingest/`, in the root of the repository, because other parts of Legato use them too. A wheel and an sdist
get a copy as `legato_ingest/data/`; a wheel that is built from an sdist takes the sdist's copy. An editable install gets none:
`legato_ingest.settings` then uses the folders of the repository, so that a copy cannot be out of date.
"""

from __future__ import annotations

import pathlib
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["DataFiles"]

_PACKED = pathlib.Path("legato_ingest", "data")
_PATTERNS = (
    "schema/*.sql",
    "schema/replaced.json",
    "schema/cluster/*.sql",
    "schema/cluster/replaced.json",
    "dashboards/legato-*.json",
    "dashboards/alerts/*.sql",
)


class DataFiles(BuildHookInterface[Any]):
    """Adds the data files to the files of the build."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of the repository. Raises ``FileNotFoundError`` if there are none."""
        root = pathlib.Path(self.root)
        if version == "editable" or (root / _PACKED).is_dir():
            return
        for pattern in _PATTERNS:
            files = sorted(root.parent.glob(pattern))
            if not files:
                raise FileNotFoundError(f"{root.parent / pattern} matches no file: build in a checkout of Legato")
            for path in files:
                build_data["force_include"][str(path)] = str(_PACKED / path.relative_to(root.parent))
