"""The chart library of the page: plotly.js, as the distribution `plotly` ships it.

The file is read from the installed package, so that an upgrade of the package upgrades the page. The package itself is not imported.
"""

from __future__ import annotations

import importlib.util
import pathlib
from functools import lru_cache

from legato_ingest.errors import LegatoError

__all__ = ["plotly_file"]


@lru_cache(maxsize=1)
def plotly_file() -> pathlib.Path:
    """Return the path of plotly.min.js. Raises ``LegatoError`` if the package is not installed."""
    found = importlib.util.find_spec("plotly")
    path = pathlib.Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if path is None or not path.is_file():
        raise LegatoError("the package plotly, which draws the page's charts, is not installed: pip install plotly")
    return path
