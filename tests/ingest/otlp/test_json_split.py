"""Division of a large JSON body: the same items in any division, any form of JSON, and little memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp import json_body, json_split
from legato_ingest.otlp.json_body import to_protobuf
from legato_ingest.otlp.json_split import documents
from legato_ingest.otlp.signals import LOGS, POINTS, SPANS, Signal

MIB = 2**20
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(st.sampled_from('a"\\{}[],:é \n'), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('ab"\\{]'), max_size=2), inner, max_size=3),
    max_leaves=8,
)
NAMES = {
    SPANS.path: ("resourceSpans", "scopeSpans", "spans"),
    POINTS.path: ("resourceMetrics", "scopeMetrics", "metrics"),
    LOGS.path: ("resourceLogs", "scopeLogs", "logRecords"),
}


def divided(content: bytes, signal: Signal = SPANS) -> list[Any]:
    """Return the documents of a body, parsed."""
    return [orjson.loads(document) for document in documents(content, signal)]


def items_of(document: Any, names: tuple[str, str, str]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the items of a document with the members of their resource and of their scope."""
    for resource in document.get(names[0], []):
        for scope in resource.get(names[1], []):
            for item in scope.get(names[2], []):
                outer = ({key: value for key, value in each.items() if key not in names} for each in (resource, scope))
                yield (*outer, item)


@given(st.data())
@examples(60)
def test_the_items_of_all_documents_are_those_of_the_body(data: st.DataObject) -> None:
    """For each signal, any values, any order of the members, with and without space, and documents of any size."""
    signal = data.draw(st.sampled_from([SPANS, POINTS, LOGS]))
    names = NAMES[signal.path]

    def message(key: str, inner: list[Any], around: str) -> dict[str, Any]:
        members = [(key, inner), (around, data.draw(_VALUES)), ("schemaUrl", data.draw(_VALUES))]
        return dict(data.draw(st.permutations(members))[: data.draw(st.integers(1, 3))]) | {key: inner}

    scopes = [
        [[data.draw(_VALUES) for _ in range(data.draw(st.integers(0, 4)))] for _ in range(data.draw(st.integers(0, 3)))] for _ in range(2)
    ]
    body = {names[0]: [message(names[1], [message(names[2], items, "scope") for items in each], "resource") for each in scopes]}
    content = json.dumps(body, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=data.draw(st.booleans())).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_split, "_ITEMS_BYTES_MAX", data.draw(st.sampled_from([0, 20, 10**6])))
        found = [each for document in divided(content, signal) for each in items_of(document, names)]
    assert found == list(items_of(orjson.loads(content), names))


def test_names_with_escapes_and_in_snake_case_are_followed() -> None:
    """Both are valid in JSON; members that OTLP does not define are left out, whatever they hold."""
    content = rb'{"x":{"a":[1,2]},"resource_spans":[{"y":7,"scope\u0053pans":[{"scope":{"name":"n"},"spans":[1,{"a":"]}"}]}]}]}'
    assert divided(content) == [{"resourceSpans": [{"scopeSpans": [{"scope": {"name": "n"}, "spans": [1, {"a": "]}"}]}]}]}]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"{", b'{"resourceSpans":[}', b'{"resourceSpans":[{]}', b'{"resourceSpans":[{"scopeSpans":[{"spans":[1 2]}]}]}',
     b'{"resourceSpans":[]} x', b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"a":"]}]}]}', b'{"a" 1}', b'{"a":1,}', b"{a:1}", b'{"a":}'],
)  # fmt: skip
def test_text_that_cannot_be_divided_is_refused(content: bytes) -> None:
    """With the place, and without its text."""
    with pytest.raises(BadRequest, match="at byte") as error:
        divided(content)
    assert error.value.status == 400


@pytest.mark.parametrize("value", [b"7", b"[7]", b'[{"scopeSpans":7}]', b'[{"scopeSpans":[7]}]', b'[{"scopeSpans":[{"spans":7}]}]'])
@pytest.mark.parametrize("found", [b"7", b"null", b"{}", b"[]"])
def test_messages_of_another_type_are_left_to_the_parser(monkeypatch: pytest.MonkeyPatch, value: bytes, found: bytes) -> None:
    """A body that is divided is refused if it would be refused as a whole."""
    content = b'{"resourceSpans":%s}' % value.replace(b"7", found)

    def is_refused() -> bool:
        try:
            to_protobuf(content, SPANS, "")
            return False
        except BadRequest:
            return True

    as_a_whole = is_refused()
    monkeypatch.setattr(json_body, "_WHOLE_BYTES_MAX", 0)
    assert is_refused() == as_a_whole


def test_deep_values_end_where_they_end() -> None:
    """Deeper than the regular expressions reach."""
    deep = b"[" * 500 + b'"]"' + b"]" * 500
    content = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s,%s,1]}]}]}' % (deep, deep)
    (document,) = documents(content, SPANS)
    assert document == content


def test_scopes_and_what_is_around_items_are_bounded() -> None:
    """A resource of megabytes would be parsed with each part of its items, and a scope without an item takes more than its text."""
    for around in (b'{"resource":"%s","scopeSpans":[]}', b'{"scopeSpans":[{"scope":"%s","spans":[]}]}'):
        with pytest.raises(TooLarge, match="resource or scope"):
            divided(b'{"resourceSpans":[%s]}' % (around % (b"x" * 300_000)))
    with pytest.raises(TooLarge, match="scopes"):
        divided(b'{"resourceSpans":[{"scopeSpans":[%s]}]}' % b",".join([b"{}"] * 20_000))


def test_elements_and_their_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are parsed: half a million elements of any level, and values of 8 MiB, however they are nested."""
    monkeypatch.setattr(json_split, "_ELEMENTS_MAX", 5_000)
    monkeypatch.setattr(json_split, "_VALUE_BYTES_MAX", MIB)
    for body in (b'{"resourceSpans":[%s]}', b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'):
        with pytest.raises(TooLarge, match="items, scopes, resources"):
            divided(body % b",".join([b"{}"] * 6_000))
    for value in (b'"%s"' % (b"x" * 2 * MIB), b"[%s]" % b",".join([b"[]"] * MIB)):
        with pytest.raises(TooLarge, match="a value of more than"):
            divided(b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}' % value)


def test_a_value_that_is_read_bracket_by_bracket_ends_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the length of one match, as that of a whole one; texts, numbers and nested values."""
    content = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"a":["]",{"b":"\\\\"}]},"long text \\" end",12345,[[],[{}]],{}]}]}]}'
    whole = divided(content)
    monkeypatch.setattr(json_split, "_MATCH_BYTES_MAX", 6)
    assert divided(content) == whole


def test_a_large_resource_is_not_repeated_for_each_item() -> None:
    """The documents together have at most some times the bytes of the body."""
    scopes = b",".join(b'{"scope":{"name":"%s"},"spans":[%s]}' % (b"n" * 200_000, b",".join([b"{}"] * 20)) for _ in range(40))
    content = b'{"resourceSpans":[{"resource":{"a":"%s"},"scopeSpans":[%s]}]}' % (b"x" * 200_000, scopes)
    assert sum(map(len, documents(content, SPANS))) < 3 * len(content)


_SMALL = (b"{}", b"999", b'{"attributes":[{},{},{}]}')
_OTHERS = (b'{"":0}', b"[]", b'"ab"', b'{"traceId":"00","name":"abc"}')


@pytest.mark.parametrize("item", [*_SMALL, *(pytest.param(each, marks=pytest.mark.long) for each in _OTHERS)])
def test_the_memory_of_a_large_body_is_bounded(item: bytes) -> None:
    """At most eight times the text, or 48 MiB, for small values of any kind, honest and rejected ones."""
    items = b",".join([item] * min(4 * MIB // len(item), 60_000))
    content = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}],"x":[%s]}' % (items, b",".join([item] * (MIB // 2 // len(item))))
    tracemalloc.start()
    try:
        to_protobuf(content, SPANS, "")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= max(48 * MIB, 8 * len(content))


def test_faults_are_counted_over_all_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items with a fault are rejected as in a small body, and have a thousand rows at most."""
    rng = random.Random(1)
    good = [{"traceId": f"{rng.getrandbits(128):032x}", "spanId": f"{rng.getrandbits(64):016x}", "name": "a" * 50} for _ in range(9_000)]
    items = [each for number, item in enumerate(good) for each in ((item, {"name": number}) if number % 3 == 0 else (item,))]
    content = json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": items}]}]}).encode()
    assert len(content) > 2**19
    whole, refused = to_protobuf(content, SPANS, "")
    found = SPANS.request.FromString(whole)
    names = [span.name for each in found.resource_spans for scope in each.scope_spans for span in scope.spans]
    assert len(names) == 9_000 and len(found.resource_spans) > 1
    assert refused.spans == refused.rejected_items == 3_000 and refused.rejected.num_rows == 1_024
    monkeypatch.setattr(json_body, "REFUSED_MAX", 2_000)
    with pytest.raises(BadRequest, match="more than 2000"):
        to_protobuf(content, SPANS, "")
