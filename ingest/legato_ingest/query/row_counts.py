"""Takes the number of rows before a LIMIT out of a result.

ClickHouse counts the rows of the blocks that it read until then. The filter of a tenant takes the rows of other tenants out of a block, so
the number shows how many there are. To count all rows (``exact_rows_before_limit``) would read the whole table. This module runs nothing.
"""

from __future__ import annotations

import re

__all__ = ["without_rows_before_limit"]

# At the end of the result, where no value of a row can stand: ClickHouse escapes quotes in JSON and signs of tags in XML.
_JSON = re.compile(rb',\n\n\t"rows_before_limit_at_least": \d+(?=\n\}\n?\Z)')
_XML = re.compile(rb"\n\t<rows_before_limit_at_least>\d+</rows_before_limit_at_least>(?=\n</result>\n?\Z)")
_END_BYTES = 100


def without_rows_before_limit(content: bytes, fmt: str) -> bytes:
    """Return a result in this format without the number. Other formats have none, and texts that may look like it."""
    if not fmt.upper().startswith(("JSON", "XML")):
        return content
    end = content[-_END_BYTES:]
    for number in (_JSON, _XML):
        if found := number.search(end):
            return content[: len(content) - len(end) + found.start()] + end[found.end() :]
    return content
