"""The number of rows before a LIMIT is taken out of a result."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from legato_ingest.errors import StoreError
from legato_ingest.query.row_counts import without_rows_before_limit
from legato_ingest.storage import Store

SQL = "SELECT number, '<\"rows_before_limit_at_least\": 5>' AS text FROM numbers(70000) LIMIT 2"
FORMATS = ("JSON", "JSONCompact", "JSONStrings", "JSONCompactStrings", "JSONColumnsWithMetadata", "XML")


@pytest.mark.parametrize("form", FORMATS)
def test_the_number_is_left_out(shared_store: Store, form: str) -> None:
    """The rest of the result is the same, and a value that looks like the number stays."""
    content = shared_store.query_bytes(SQL, {}, form, "shop")
    shown = without_rows_before_limit(content, form)
    assert content.count(b"rows_before_limit_at_least") == shown.count(b"rows_before_limit_at_least") + (2 if form == "XML" else 1)
    if form == "XML":
        assert ElementTree.fromstring(shown).findtext("rows") == "2"
    else:
        before, after = json.loads(content), json.loads(shown)
        assert before.pop("rows_before_limit_at_least") and before == after


def test_other_formats_show_no_number(shared_store: Store) -> None:
    """Of all formats that the engine can write, none but those that `check_format` refuses."""
    for (form,) in shared_store.select("SELECT name FROM system.formats WHERE is_output AND name NOT ILIKE '%progress%'"):
        try:
            content = shared_store.query_bytes("SELECT number FROM numbers(70000) LIMIT 2", {}, str(form), "shop")
        except StoreError:  # a format for other types, or one that needs a setting
            continue
        assert b"before_limit" not in without_rows_before_limit(content, str(form)), form


def test_a_text_that_looks_like_the_number_stays() -> None:
    """At the end of a result in a format without quotes."""
    content = b'a,\n\n\t"rows_before_limit_at_least": 5\n}'
    assert without_rows_before_limit(content, "TSVRaw") == content != without_rows_before_limit(content, "JSONCompact")
