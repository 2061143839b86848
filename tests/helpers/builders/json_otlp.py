"""OTLP/JSON made from protobuf with Google's own mapping, and random messages of any type. Only tests use this module."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

__all__ = ["json_of", "messages"]

_IDS = ("traceId", "spanId", "parentSpanId")
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: st.text(st.characters(codec="utf-8"), max_size=5),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 4),
}


def json_of(message: Message) -> bytes:
    """Return a message as OTLP/JSON: ids in hexadecimal, enums as integers."""
    return json.dumps(_hexadecimal(MessageToDict(message, use_integers_for_enums=True))).encode()


def _hexadecimal(value: Any) -> Any:
    if isinstance(value, list):
        return [_hexadecimal(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: base64.b64decode(each).hex() if key in _IDS else _hexadecimal(each) for key, each in value.items()}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 12) -> Message:
    """Draw a message of a type, with some of its fields set and messages nested up to ``depth``."""
    message = GetMessageClass(descriptor)()
    fields = [each for each in descriptor.fields if depth or each.message_type is None]
    for each in draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda found: found.number)) if fields else ():
        if each.message_type is None:
            values = draw(st.lists(_scalar(each), min_size=1, max_size=2))
            if each.is_repeated:
                getattr(message, each.name).extend(values)
            else:
                setattr(message, each.name, values[0])
        elif each.is_repeated:
            getattr(message, each.name).extend(draw(st.lists(messages(each.message_type, depth - 1), max_size=2)))
        else:
            inner = getattr(message, each.name)
            inner.SetInParent()
            inner.CopyFrom(draw(messages(each.message_type, depth - 1)))
    return message


def _scalar(of: FieldDescriptor) -> st.SearchStrategy[Any]:
    return st.binary(max_size=17) if of.type == FieldDescriptor.TYPE_BYTES else _SCALARS[of.cpp_type]
