"""OTLP/JSON request bodies: JSON text to the protobuf bytes of the same request, which ``split.convert_body`` converts.

A span, data point or log record with a fault is left out and becomes a row of ``rejected``; its neighbours are kept. Text that is not JSON,
and faults in a resource or scope, reject the request (400). Memory is bounded by the number of values, because a parsed value takes up to
thirty times the memory of its text. No message quotes a value.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import orjson

from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp.batch import Batch, Rejection, rejected_table
from legato_ingest.otlp.json_message import REFUSED_MAX, Fault, Filler, Refused, TooManyRefused
from legato_ingest.otlp.signals import SIGNALS, Signal

__all__ = ["VALUES_MAX", "to_protobuf"]

# A parsed object with one field takes 240 bytes.
VALUES_MAX = 2_000_000
# Beyond this many escapes a text is not mended: the search takes 0.3 µs an escape, in which no other thread runs.
_ESCAPES_MAX = 200_000
_NAME_CHARACTERS_MAX = 1024
_STRUCTURE = (b",", b"{", b"[")
_FILLERS = {signal.path: Filler(signal.request.DESCRIPTOR, signal.isolating) for signal in SIGNALS}
# An escape: a pair of surrogates, a single surrogate, or any other.
_ESCAPE = re.compile(rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)


def to_protobuf(content: bytes, signal: Signal, tenant: str) -> tuple[bytes, Batch]:
    """Return the request in protobuf without the items that have a fault, and a batch with the rejections of those.

    Raises ``BadRequest`` (400) and ``TooLarge`` (413).
    """
    values = sum(map(content.count, _STRUCTURE))
    if values > VALUES_MAX:
        raise TooLarge(f"JSON of about {values} values, at most {VALUES_MAX} are accepted: send fewer {signal.item}s in one, or protobuf")
    message = signal.request()
    try:
        refused = _FILLERS[signal.path].fill(message, _parsed(content))
    except Fault as fault:
        raise BadRequest(f"the body is not an OTLP request in JSON: {fault}") from None
    except TooManyRefused as fault:
        raise BadRequest(f"more than {REFUSED_MAX} {signal.item}s are not valid in JSON; the first: {fault}") from None
    rejections = [_rejection(each, signal) for each in refused]
    batch = Batch(rejected=rejected_table(rejections, tenant), **signal.count(len(rejections)))
    return message.SerializeToString(), batch


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
        reason="json",
        detail=f"metric {metrics[0]['name'][:256]!r}: {refused.detail}" if is_metric and metrics else refused.detail,
        trace_id=b"" if is_metric else _id(item, ("traceId", "trace_id")),
        span_id=b"" if is_metric else _id(item, ("spanId", "span_id")),
        rev=0,
        start_ns=0,
        service_name="",
        emitter="",
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
