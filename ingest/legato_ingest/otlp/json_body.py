"""OTLP/JSON request bodies: JSON text to the protobuf bytes of the same request, which ``bodies.convert`` converts.

A span, data point or log record with a fault is left out and becomes a row of ``rejected``; its neighbours are kept. Text that is not JSON,
and faults in a resource or scope, reject the request (400). A large text is divided (``json_split``), and the number of values in one part
is limited, because a parsed value takes up to forty times the memory of its text. No message quotes a value.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp.batch import Batch, Rejection, rejected_table
from legato_ingest.otlp.budget import LISTED_MAX
from legato_ingest.otlp.json_message import REFUSED_MAX, Fault, Filler, Refused, TooManyRefused
from legato_ingest.otlp.json_split import documents
from legato_ingest.otlp.signals import SIGNALS, Signal

__all__ = ["VALUES_MAX", "requests", "to_protobuf"]

# A text up to this size is parsed without being divided.
_WHOLE_BYTES_MAX = 2**19
# Values of one part of a text. A parsed object with one field takes 240 bytes. 8,192 points with eight attributes are 300,000.
VALUES_MAX = 524_288
# Beyond this many escapes a text is not mended: the search takes 0.3 µs an escape, in which no other thread runs.
_ESCAPES_MAX = 200_000
_NAME_CHARACTERS_MAX = 1024
_STRUCTURE = (b",", b"{", b"[")
_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_REASON = "json"
_FILLERS = {signal.path: Filler(signal.request.DESCRIPTOR, signal.isolating) for signal in SIGNALS}
# An escape: a pair of surrogates, a single surrogate, or any other.
_ESCAPE = re.compile(rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)


def to_protobuf(content: bytes, signal: Signal, tenant: str) -> tuple[bytes, Batch]:
    """Return the request in protobuf without the items that have a fault, and a batch with the rejections of those.

    Raises ``BadRequest`` (400) and ``TooLarge`` (413).
    """
    parts = list(requests(content, signal, tenant))
    # Messages of one type in a row are one message with the repeated fields of all.
    return b"".join(request for request, _ in parts), Batch.joined(refused for _, refused in parts if refused.rejected_items)


def requests(content: bytes, signal: Signal, tenant: str) -> Iterator[tuple[bytes, Batch]]:
    """Yield what ``to_protobuf`` returns in parts, one for each document that a large text is divided into."""
    left, refusals, first = LISTED_MAX, 0, ""
    is_divided = len(content) > _WHOLE_BYTES_MAX
    for document in documents(content, signal) if is_divided else [content]:
        refused = list[Refused]()
        if is_divided and (fault := _excess(document, signal)):
            request, rejections = b"", [_too_large(document, signal, fault)]
        else:
            request, refused = _filled(document, signal)
            rejections = [_rejection(each, signal) for each in refused[:left]]
        left, first = max(0, left - len(rejections)), first or "".join(each.detail for each in rejections[:1])
        count = max(len(refused), len(rejections))
        refusals += count
        if refusals > REFUSED_MAX:
            raise _too_many(signal, first)
        unlisted = +Counter({_REASON: count - len(rejections)})
        yield request, Batch(rejected=rejected_table(rejections, tenant), unlisted=unlisted, **signal.count(count))


def _filled(content: bytes, signal: Signal) -> tuple[bytes, list[Refused]]:
    """Return a part of a request in protobuf, and the items that were left out."""
    if fault := _excess(content, signal):
        raise TooLarge(fault)
    message = signal.request()
    try:
        refused = _FILLERS[signal.path].fill(message, _parsed(content))
    except Fault as fault:
        raise BadRequest(f"the body is not an OTLP request in JSON: {fault}") from None
    except TooManyRefused as fault:
        raise _too_many(signal, str(fault)) from None
    return message.SerializeToString(), refused


def _excess(content: bytes, signal: Signal) -> str:
    """Return why a part is too large to be parsed; an empty text if it is not. Of a divided text only a part of one item can be."""
    values = sum(map(content.count, _STRUCTURE))
    # A text is a key or a value, so twice as many texts are too many values.
    if values > VALUES_MAX >= (content.count(b'"') - content.count(b'\\"')) // 4:
        # Text by text: no other thread runs within a call of `re`, and to remove a million texts at once takes 0.3 s.
        values -= sum(sum(map(text[0].count, _STRUCTURE)) for text in _TEXTS.finditer(content))
    return f"about {values} values in one {signal.item}, at most {VALUES_MAX} are accepted: send protobuf" if values > VALUES_MAX else ""


def _too_large(document: bytes, signal: Signal, detail: str) -> Rejection:
    return Rejection(
        reason="size",
        detail=detail,
        otlp_bytes=len(document),
        span_sha256=hashlib.sha256(document).digest(),
    )


def _too_many(signal: Signal, first: str) -> BadRequest:
    return BadRequest(f"more than {REFUSED_MAX} {signal.item}s are not valid in JSON; the first: {first}")


def _parsed(content: bytes) -> object:
    """Parse JSON. Single surrogates become U+FFFD: JavaScript creates them where it cuts a text inside a character."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        if b"\\u" not in content or content.count(b"\\") > _ESCAPES_MAX:
            raise _no_json(error) from None
    try:
        return orjson.loads(_ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], content))
    except orjson.JSONDecodeError as error:
        raise _no_json(error) from None


def _no_json(error: orjson.JSONDecodeError) -> BadRequest:
    # The parser's message has a reason and a place, and no text of the body.
    return BadRequest(f"the body is not JSON: {str(error)[:200]}")


def _rejection(refused: Refused, signal: Signal) -> Rejection:
    item = refused.item if isinstance(refused.item, dict) else {}
    metrics = [each for each in (item, *refused.around) if isinstance(each, dict) and isinstance(each.get("name"), str)]
    is_metric = bool(signal.name_field)
    content = _dumped([refused.item])
    return Rejection(
        reason=_REASON,
        detail=f"metric {metrics[0]['name'][:256]!r}: {refused.detail}" if is_metric and metrics else refused.detail,
        trace_id=b"" if is_metric else _id(item, ("traceId", "trace_id")),
        span_id=b"" if is_metric else _id(item, ("spanId", "span_id")),
        otlp_bytes=len(content),
        # A point has no ids, so its metric distinguishes it from the same point of another metric.
        span_sha256=hashlib.sha256(_dumped([refused.item, *(map(_named, metrics[:1]) if is_metric else ())])).digest(),
    )


def _named(metric: dict[str, Any]) -> dict[str, str]:
    """Return what identifies a metric, without its points."""
    return {name: metric[name][:_NAME_CHARACTERS_MAX] for name in ("name", "unit", "description") if isinstance(metric.get(name), str)}


def _dumped(values: Sequence[object]) -> bytes:
    """Return the values as JSON with sorted keys; their number if they are nested deeper than the library writes."""
    try:
        return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return b"%d" % len(values)


def _id(item: dict[str, object], names: Sequence[str]) -> bytes:
    """Return an id of an item, as far as it can be read."""
    text = next((value for name in names if isinstance(value := item.get(name), str)), "")
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return b""
