"""Text that a hostile sender could choose as a name, a store in which every text has it, and which characters of it are not to be shown."""

from __future__ import annotations

import unicodedata

from legato_ingest.storage import Store

__all__ = ["HOSTILE", "put_into_all_texts", "unseen"]

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_FORMATS = [0xAD, 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x2070), 0xFEFF, 0xFFF9]
_TAGS = [0xE0001, *range(0xE0020, 0xE0080)]
_BLANKS = [0x34F, 0x115F, 0x180B, 0x3164, 0xFE00, 0xFE0F, 0xFFA0, 0xE0100, 0xE01EF, 0xE000]
HOSTILE = "\x1b]0;own\x07\x1b[2J[/][red]x[link=http://e]" + "".join(map(chr, (*_CONTROLS, *_FORMATS, *_TAGS, *_BLANKS)))
"""Every class of characters that steer a terminal or are not seen, and markup of Rich."""

# Names of Legato, which the code compares, and patterns.
_FIXED = frozenset(
    (
        *(
            "vantage",
            "outcome",
            "cause",
            "confidence",
            "metric",
            "kind",
            "temporality",
            "unit",
            "result",
            "lease",
            "holder",
            "writer",
            "clock",
        ),
        *("direction", "client_hash", "tenant"),
    )
)
_FIXED_IN = {"objectives": {"service", "model", "route"}, "schema_migrations": {"name", "sha256"}}


def unseen(text: str) -> set[str]:
    """Return the characters of a text that steer a terminal or are not seen, but for line breaks, as code points."""
    hidden = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
    blanks = frozenset(map(chr, _BLANKS)) | frozenset(map(chr, range(0xFE00, 0xFE10)))
    return {f"U+{ord(each):04X}" for each in text if each != "\n" and (unicodedata.category(each) in hidden or each in blanks)}


def put_into_all_texts(store: Store) -> None:
    """Append the hostile text to every text in every table that a sender, a file or a server's message may have filled."""
    columns = store.select(
        "SELECT table, groupArray((name, type)) FROM system.columns WHERE database = currentDatabase() AND type LIKE '%String%' "
        "AND table IN (SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree') GROUP BY table"
    )
    for table, typed in columns:
        fixed = _FIXED | _FIXED_IN.get(table, set())
        changed = [expression for name, kind in typed if name not in fixed and (expression := _changed(name, kind))]
        if not changed:
            continue
        store.command(f"CREATE TABLE hostile_{table} AS {table}")
        store.command(f"INSERT INTO hostile_{table} SELECT * REPLACE ({', '.join(changed)}) FROM {table}")
        store.command(f"TRUNCATE TABLE {table}")
        store.command(f"INSERT INTO {table} SELECT * FROM hostile_{table}")
        store.command(f"DROP TABLE hostile_{table} SYNC")


def _changed(name: str, kind: str) -> str:
    """Return the expression of a column with the text appended; empty for a column without text."""
    text = f"unhex('{HOSTILE.encode().hex()}')"
    if kind in ("String", "LowCardinality(String)"):
        return f"if({name} = '', {name}, concat({name}, {text})) AS {name}"
    if kind.startswith("Array("):
        return f"arrayMap(each -> concat(each, {text}), {name}) AS {name}"
    if kind.endswith("String)") and kind.startswith("Map("):
        return f"mapApply((name, value) -> (name, concat(value, {text})), {name}) AS {name}"
    return ""
