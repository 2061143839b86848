"""Encodes an engine's steps as OTLP: one span per flush, with the steps packed by columns (schema/STEPS.md).

The span's ids are derived from the engine, its epoch and the number of the first step, so a repeated flush is the same span, and the
receiver deduplicates, rejects and routes steps with the code for streams. The module keeps no queue and sends nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_gpu_agent import __version__
from legato_gpu_agent.agent.pack import ROWS_MAX, pack
from legato_gpu_agent.plugin.model import Engine, FinishedRequest, SchedulerEvent, Step

__all__ = ["Engine", "FinishedRequest", "SchedulerEvent", "Step", "steps_request"]

SPAN_NAME = "legato.engine.steps"
_DT = 1
# Column ids of schema/STEPS.md: 1 is `dt`, 2 the step's number, then the fields of Step in their order.
_COLUMNS = {field.name: number for number, field in enumerate(fields(Step)[2:], 3)}
_NUMBER = 2
# Maximum of a column, minus the 1 that is added to known values.
_VALUE_MAX = 2**32 - 2


def steps_request(
    engine: Engine,
    steps: Sequence[Step],
    finished: Sequence[FinishedRequest] = (),
    events: Sequence[SchedulerEvent] = (),
) -> ExportTraceServiceRequest:
    """Return a flush as an OTLP request. Raises ``ValueError`` without steps, or with more than 65,536."""
    if not 0 < len(steps) <= ROWS_MAX:
        raise ValueError(f"a flush of {len(steps)} steps: expected 1 to {ROWS_MAX}")
    first, last = steps[0], steps[-1]
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = "legato"
    scope.scope.attributes.add(key="legato.emitter", value=AnyValue(string_value=f"legato-gpu-agent/{__version__}"))
    span = scope.spans.add(
        trace_id=_digest(engine, "", 16),
        span_id=_digest(engine, str(first.number), 8),
        name=SPAN_NAME,
        start_time_unix_nano=first.recorded_ns,
        end_time_unix_nano=max(last.recorded_ns, first.recorded_ns),
    )
    _add(span, "legato.engine.id", AnyValue(string_value=engine.id))
    _add(span, "legato.engine.epoch", AnyValue(int_value=engine.epoch_ns))
    _add(span, "legato.engine.step_first", AnyValue(int_value=first.number))
    _add(span, "legato.engine.steps", AnyValue(bytes_value=_packed(steps)))
    _add_arrays(span, "legato.engine.finished", finished)
    _add_arrays(span, "legato.engine.events", events)
    return request


def _packed(steps: Sequence[Step]) -> bytes:
    """Return the packed columns: values plus 1, 0 for an unknown value; a column that is unknown in all steps is left out."""
    times = np.array([step.recorded_ns // 1000 for step in steps], np.int64)
    numbers = np.array([step.number for step in steps], np.int64)
    columns = {_DT: np.diff(times, prepend=times[0]), _NUMBER: np.diff(numbers, prepend=numbers[0])}
    for name, number in _COLUMNS.items():
        values = [getattr(step, name) for step in steps]
        if any(value is not None for value in values):
            columns[number] = np.array([0 if value is None else min(value, _VALUE_MAX) + 1 for value in values], np.int64)
    return pack(columns, len(steps))


def _add_arrays(span: Span, prefix: str, records: Sequence[FinishedRequest] | Sequence[SchedulerEvent]) -> None:
    """Add one array per field, with one value per record; nothing without records."""
    for field in fields(records[0]) if records else ():
        values = [getattr(each, field.name) for each in records]
        kind = "string_value" if isinstance(values[0], str) else "int_value"
        array = AnyValue()
        array.array_value.values.extend(AnyValue(**{kind: value}) for value in values)
        _add(span, f"{prefix}.{field.name}", array)


def _add(span: Span, key: str, value: AnyValue) -> None:
    span.attributes.add(key=key, value=value)


def _digest(engine: Engine, part: str, size: int) -> bytes:
    return hashlib.blake2b(f"{engine.id}\0{engine.epoch_ns}\0{part}".encode(), digest_size=size).digest()
