"""The objectives of the SLO: what a good stream is, by service, model and route, and which share of the streams has to be good.

The objectives come from the file LEGATO_OBJECTIVES_FILE; the last one matches every stream and comes from the settings. The table
`objectives` holds those that apply (``storage.objective_rows``), and all statements read them from the view `current_objectives`. The
module reads the file and holds the SQL; it knows no store.
"""

from __future__ import annotations

import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, SLO_TARGET
from legato_ingest.errors import SettingsError
from legato_ingest.settings import Settings

__all__ = ["ANY", "DEFAULT", "LISTED", "NAME", "OBJECTIVES_MAX", "TARGET", "TARGETS", "Objective", "like", "load", "of_file"]

DEFAULT = "default"
"""The name of the last objective, which matches every stream."""
ANY = "*"
"""The pattern that matches everything, and as a tenant all tenants. A tenant is compared exactly and has no patterns."""
OBJECTIVES_MAX = 100
"""A stream is compared with each objective before its own, so there is a limit."""

# The target of a row of the rollups, which have the name of the objective. `targets` is a scalar for a WITH clause. A row of an objective
# that does not exist any more has the target of the default, until `legato objectives apply` computes it again.
TARGETS = """(
        SELECT (groupArray(name), groupArray(first_target))
        FROM (SELECT name, argMin(target, rank) AS first_target FROM current_objectives GROUP BY name)
    )"""
TARGET = "transform(objective::String, targets.1, targets.2, targets.2[indexOf(targets.1, 'default')])"
# The objectives as an array, for a WITH clause, and the name of the objective of a row of `stream_revs`. The array has to be called
# `objectives`. The view `streams` has the same comparison.
LISTED = """(
        SELECT arraySort(groupArray((rank, tenant, service_like, model_like, route_like, name))) FROM current_objectives
    )"""
NAME = (
    "arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3::String AND model LIKE row.4::String "
    "AND route LIKE row.5::String, objectives).6"
)

_PATTERN_BYTES_MAX = 256
# 30 years: in effect no limit. The store has whole µs.
_LIMIT_MS_MAX, _LIMIT_MS_MIN = 1e12, 0.001


def _pattern(what: str) -> Any:
    return Field(default=ANY, min_length=1, max_length=_PATTERN_BYTES_MAX, description=f"Pattern of {what}; `*` stands for any characters")


def _limit(default: float, description: str) -> Any:
    return Field(default=default, ge=_LIMIT_MS_MIN, le=_LIMIT_MS_MAX, allow_inf_nan=False, description=description)


class Objective(BaseModel):
    """An objective. It applies to the streams that match all of its patterns, unless an earlier objective matches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="Name, unique in the file")
    tenant: str = Field(default=ANY, min_length=1, max_length=64, description="Exact name of the tenant of the streams; `*` for all")
    service: str = _pattern("the service name")
    model: str = _pattern("the model")
    route: str = _pattern("the route")
    target: float = Field(default=SLO_TARGET, gt=0, le=0.999999, description="Share of the streams that has to be good: 0.99 for 99 %")
    gap_limit_ms: float = _limit(SLO_GAP_MS, "A stream with a longer gap, in ms, is not good")
    first_output_limit_ms: float = _limit(SLO_FIRST_OUTPUT_MS, "A stream with a later first output, in ms after its start, is not good")

    @field_validator("tenant")
    @classmethod
    def _exact(cls, tenant: str) -> str:
        if ANY in tenant and tenant != ANY:
            expected = "expected the exact name of a tenant, or '*' for all; only service, model and route can have patterns"
            raise PydanticCustomError("tenant", expected)
        return tenant

    @property
    def gap_limit_us(self) -> int:
        """The limit of a gap in µs."""
        return round(self.gap_limit_ms * 1_000)

    @property
    def first_output_limit_us(self) -> int:
        """The limit of the first output in µs after the start."""
        return round(self.first_output_limit_ms * 1_000)


def like(pattern: str) -> str:
    """Return a pattern in the form of SQL's LIKE; the view `current_objectives` has the same in SQL."""
    return re.sub(r"([%_\\])", r"\\\1", pattern).replace(ANY, "%")


def load(settings: Settings) -> tuple[Objective, ...]:
    """Return the objectives in their order: those of the file, then the default. Raises ``SettingsError``."""
    limits = {"gap_limit_ms": settings.slo_gap_ms, "first_output_limit_ms": settings.slo_first_output_ms}
    listed = of_file(settings.objectives_file, limits) if settings.objectives_file else ()
    return (*listed, _objective("the default (LEGATO_SLO_GAP_MS, LEGATO_SLO_FIRST_OUTPUT_MS)", {"name": DEFAULT, **limits}))


def of_file(path: pathlib.Path, limits: Mapping[str, float]) -> tuple[Objective, ...]:
    """Return the objectives of a TOML file. ``limits``: the figures of an objective that does not set them. Raises ``SettingsError``."""
    where = f"LEGATO_OBJECTIVES_FILE: {path}"
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror}; create the file, or unset LEGATO_OBJECTIVES_FILE") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where} is not valid TOML: {error}") from None
    entries = read.pop("objective", [])
    if read or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        other = ", ".join(sorted(read)) or "objective as something else"
        raise SettingsError(f"{where} has {other}, expected [[objective]] tables and nothing else")
    if len(entries) > OBJECTIVES_MAX:
        raise SettingsError(f"{where} has {len(entries)} objectives, expected {OBJECTIVES_MAX} at most")
    found = tuple(_objective(f"{where}, objective {number}", {**limits, **entry}) for number, entry in enumerate(entries, 1))
    names = [each.name for each in found]
    if twice := [name for name in names if names.count(name) > 1 or name == DEFAULT]:
        raise SettingsError(f"{where}: the name {twice[0]!r} occurs twice; the last objective, which Legato adds, is named {DEFAULT!r}")
    return found


def _objective(where: str, entry: Mapping[str, Any]) -> Objective:
    try:
        return Objective.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            problem = f"{name!r} is not a key of an objective, expected {', '.join(Objective.model_fields)}"
        elif first["type"] == "missing":
            problem = f"{name!r} is missing"
        else:
            problem = f"{name!r} has value {first['input']!r}: {first['msg']}"
        raise SettingsError(f"{where}: {problem}") from None
