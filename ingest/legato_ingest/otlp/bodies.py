"""The conversion of a decompressed request body, in protobuf or JSON, to batches of rows.

A large body becomes several batches, one after another, so that its rows are never in memory together. What makes a body a bad request is
raised before the first batch. The module decompresses nothing and answers no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from legato_ingest.otlp import json_body
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.budget import Budget
from legato_ingest.otlp.signals import SPANS, Signal
from legato_ingest.otlp.split import GROUP_BYTES_MAX, Converter, in_parts
from legato_ingest.otlp.structure import Left, check

__all__ = ["convert"]

# A protobuf body up to this size is converted without being split, and a JSON body is converted to protobuf as a whole.
UNSPLIT_BYTES_MAX, _JSON_WHOLE_BYTES_MAX = 2**20, 2**22


def convert(
    content: bytes,
    *,
    tenant: str,
    now_ns: int,
    limits: Limits,
    on_fault: Callable[[Exception], None],
    signal: Signal = SPANS,
    is_json: bool = False,
) -> Iterator[Batch]:
    """Yield the rows of a body, in batches of ``split.PART_BYTES_MAX`` and the rows of one small request at most; at least one batch.

    ``on_fault`` receives each exception of Legato's own code on an item. Raises ``BadRequest`` (400) when the body is not an OTLP request,
    and ``TooLarge`` (413) when it holds more than ``structure.ITEMS_MAX`` items; both before the first batch.
    """
    refused, is_whole = Batch(), not is_json or len(content) <= _JSON_WHOLE_BYTES_MAX
    if is_json and is_whole:
        content, refused = json_body.to_protobuf(content, signal, tenant)
    converter = Converter(signal, tenant, now_ns, limits, on_fault, Budget.of(limits, len(content), tenant, now_ns))
    if is_whole:
        for batch in _converted(content, converter):
            yield (Batch.joined((batch, refused)) if refused.rejected_items else batch).measured()
            refused = Batch()
    else:
        left = Left.of_request()
        for request, _ in json_body.requests(content, signal, tenant):
            check(request, signal, left)
        for batch in in_parts(_converted_json(content, converter)):
            yield batch.measured()


def _converted(content: bytes, converter: Converter) -> Iterator[Batch]:
    """Yield the rows of a body in protobuf."""
    if len(content) <= UNSPLIT_BYTES_MAX and (batch := converter.convert_whole(content)) is not None:
        yield batch
        return
    check(content, converter.signal, Left.of_request())
    yield from in_parts(converter.convert_split(content))


def _converted_json(content: bytes, converter: Converter) -> Iterator[Batch]:
    """Yield the rows of the documents of a large body in JSON, and what was refused in them."""
    requests, size = list[bytes](), 0
    for request, refused in json_body.requests(content, converter.signal, converter.tenant):
        requests.append(request)
        size += len(request)
        if refused.rejected_items:
            yield refused
        # A document may be a single item, and each conversion costs as much as some hundred of them.
        if size >= GROUP_BYTES_MAX:
            yield from converter.convert_split(b"".join(requests))
            requests, size = [], 0
    yield from converter.convert_split(b"".join(requests))
