"""The settings of the `legato` command: one class, validated once at start.

Every setting is a field with a default, a unit in its name and a description; the environment variable is the field's name in capitals
after ``LEGATO_``. docs/reference.md has the same descriptions, which a test compares. Only this module reads these variables; the reading
commands and `legato doctor` also read the variables of the client (docs/reference.md).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from legato_ingest.address import Address, address_of
from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, STALL_EXCESS_MS, STALL_MS
from legato_ingest.errors import SettingsError

__all__ = ["Settings", "deprecations", "load"]

# Fields with an earlier name. The variable of the earlier name still works; the variable of the new name takes precedence.
_EARLIER_NAMES = {
    "tenant_in_flight_bytes_max": "tenant_waiting_bytes_max",
    "tenant_cardinality_max": "tenant_names_max",
    "insert_chunks_max": "commit_chunks_max",
    "attribute_grace_s": "attribute_settle_s",
}


def _variable(field: str) -> str:
    return f"LEGATO_{field.upper()}"


def _names(field: str) -> AliasChoices:
    """The environment variables of a renamed field."""
    return AliasChoices(_variable(field), _variable(_EARLIER_NAMES[field]))


def _default_store() -> str:
    base = os.environ.get("XDG_DATA_HOME") or str(pathlib.Path.home() / ".local" / "share")
    return f"chdb://{base}/legato/store"


def _data_root() -> pathlib.Path:
    """Return the folder with `schema/` and `dashboards/`: the package data of an installed wheel, else the root of the checkout."""
    packed = pathlib.Path(__file__).resolve().parent / "data"
    return packed if packed.is_dir() else pathlib.Path(__file__).resolve().parents[2]


def _default_schema() -> pathlib.Path:
    return _data_root() / "schema"


def _default_dashboards() -> pathlib.Path:
    return _data_root() / "dashboards"


class Settings(BaseSettings):
    """All settings of `legato`."""

    model_config = SettingsConfigDict(env_prefix="LEGATO_", frozen=True, extra="ignore", populate_by_name=True)

    store: str = Field(
        default_factory=_default_store,
        description=(
            "Address of the store: `chdb:///absolute/path` (embedded), `clickhouse://USER@HOST:8123/DATABASE`, or `clickhouses://…`"
            " for TLS. It must not contain a password"
        ),
    )
    store_password: SecretStr = Field(
        SecretStr(""),
        description="Password of the ClickHouse user in `LEGATO_STORE`. Not used with an embedded store",
    )
    schema_dir: pathlib.Path = Field(
        default_factory=_default_schema,
        description="Folder with the numbered SQL files of the schema. `schema/cluster` is the schema for a cluster",
    )
    dashboards_dir: pathlib.Path = Field(
        default_factory=_default_dashboards,
        description="Folder with the JSON of the dashboards and the SQL of the alert rules, for `legato dashboards` and `legato slo`",
    )
    grafana_token: SecretStr = Field(
        SecretStr(""),
        description="Token of a Grafana service account, for `legato dashboards`. It takes precedence over user and password",
    )
    grafana_user: str = Field(
        "",
        description="Grafana user for `legato dashboards`, if no `LEGATO_GRAFANA_TOKEN` is set. Needs `LEGATO_GRAFANA_PASSWORD`",
    )
    grafana_password: SecretStr = Field(SecretStr(""), description="Password of `LEGATO_GRAFANA_USER`")
    tokens_file: pathlib.Path | None = Field(
        None,
        description=(
            "File of token hashes, written by `legato token`: it defines who may write and read, and as which tenant. If it is set,"
            " every request to the OTLP and read endpoints needs a token"
        ),
    )
    objectives_file: pathlib.Path | None = Field(
        None,
        description=(
            "File with the objectives of the SLO (TOML): limits and target by service, model and route. `legato serve` reads it at its"
            " start, and `legato objectives apply` while it runs. None: all streams have the default objective"
        ),
    )
    tls_cert_file: pathlib.Path | None = Field(
        None,
        description=(
            "Certificate (PEM, with its chain) of the OTLP and read endpoints. If it is set, both use TLS. Needs `LEGATO_TLS_KEY_FILE`"
        ),
    )
    tls_key_file: pathlib.Path | None = Field(
        None,
        description="Private key (PEM, without a passphrase) of `LEGATO_TLS_CERT_FILE`. Renewed files are used within a minute",
    )
    tenant_bytes_per_s: int = Field(
        0,
        ge=0,
        description=(
            "Average rate at which one tenant may send, in bytes per second. Up to 1.5 s of unused rate can be saved up, and one request "
            "may overdraw the balance; while it is overdrawn, requests of the tenant get 429, over HTTP after 0.25 to 2 s. 0: no limit"
        ),
    )
    tenant_in_flight_bytes_max: int = Field(
        128 * 2**20,
        ge=0,
        validation_alias=_names("tenant_in_flight_bytes_max"),
        description=(
            "Limit of in-flight bytes per tenant: bytes of request bodies that were received and not yet answered. Beyond it, "
            "requests get 429, unless the tenant has no other request in flight. 0: no limit"
        ),
    )
    tenant_cardinality_max: int = Field(
        0,
        ge=0,
        validation_alias=_names("tenant_cardinality_max"),
        description=(
            "Cardinality limit per tenant and hour: distinct combinations of a stream's labels (service, model, route and others) "
            "plus distinct series of samples. Beyond it, requests get 429. The first request of an hour is always accepted. 0: no "
            "limit"
        ),
    )
    host: str = Field(
        "127.0.0.1",
        description="Listening address of the OTLP endpoint. An address other than loopback needs a write token in `LEGATO_TOKENS_FILE`",
    )
    otlp_port: int = Field(4318, ge=1, le=65_535, description="Port of the OTLP endpoint (OTLP over HTTP, health checks and metrics)")
    otlp_grpc_port: int = Field(
        4317,
        ge=0,
        le=65_535,
        description=(
            "Port of the OTLP endpoint for gRPC, on the address `LEGATO_HOST`. 0: no gRPC. If another process listens on the default port, "
            "`legato serve` runs without gRPC and logs it"
        ),
    )
    cors_origins: str = Field(
        "",
        pattern=r"^((\*|https?://[^/,\s]+)(,\s*|$))*$",
        description=(
            "Origins of web pages that may send OTLP over HTTP from a browser, separated by commas (`https://shop.example`), or `*`. It "
            "grants nothing: pages need a token (`legato token add … --origin`). None: browsers refuse to send"
        ),
    )
    read_host: str = Field(
        "127.0.0.1",
        description=(
            "Listening address of the read endpoint. An address other than loopback needs a read token in `LEGATO_TOKENS_FILE`, or "
            "`LEGATO_READ_PASSWORD`"
        ),
    )
    read_port: int = Field(8123, ge=1, le=65_535, description="Port of the read endpoint (ClickHouse over HTTP, read-only)")
    web_port: int = Field(
        8080,
        ge=0,
        le=65_535,
        description=(
            "Port of the web page, on the address `LEGATO_READ_HOST` and with the credentials of readers. 0: no web page. If another "
            "process listens on the default port, `legato serve` runs without the page and logs it"
        ),
    )
    web_notice: str = Field("", max_length=500, description="Text above every page, such as the name of the installation")
    read_user: str = Field("legato", pattern=r"^[^:\x00-\x20\x7f]+$", description="User name that readers send with `LEGATO_READ_PASSWORD`")
    read_password: SecretStr = Field(
        SecretStr(""),
        description=(
            "Password that every reader must send; it gives access to the rows of all tenants. At least 12 characters if "
            "`LEGATO_READ_HOST` is not loopback. None: no password is needed"
        ),
    )
    retention_days: int = Field(
        90,
        ge=0,
        le=20_000,
        description=(
            "Days for which streams, engine steps, samples and verdicts are kept. Older streams, steps and samples are also "
            "rejected on receipt. At most 20,000; 0: no limit"
        ),
    )
    retention_timelines_days: int = Field(
        0,
        ge=0,
        le=20_000,
        description="Days for which raw timelines are kept, at most 20,000. The statistics of a stream stay. 0: as long as their streams",
    )
    retention_rollups_days: int = Field(
        400,
        ge=0,
        le=20_000,
        description=(
            "Days for which the rollups and the changes in chunking are kept; the 5-minute rollup of node samples at least as long as the "
            "samples. At most 20,000; 0: no limit"
        ),
    )
    body_bytes_max: int = Field(
        64 * 2**20,
        ge=1,
        le=2**31 - 1,
        description="Largest request body in bytes, before and after decompression. Larger requests get 413",
    )
    queue_bytes_max: int = Field(
        256 * 2**20,
        ge=1,
        description=(
            "Limit of in-flight bytes, applied once to the request bodies that are received and decoded, and once to the rows that "
            "wait for their insert. Beyond it, requests get 429, unless nothing else is in flight"
        ),
    )
    decode_requests_max: int = Field(
        4,
        ge=1,
        description="Number of requests of up to 128 KiB after decompression that are decoded at the same time; of larger ones half as"
        " many, and of those over 4 MiB a quarter. Further requests wait",
    )
    chunks_per_request_max: int = Field(
        8_388_608,
        ge=65_536,
        description=(
            "Number of chunks and engine steps that the timelines of one request may declare. Spans beyond it are rejected with the"
            " reason `chunk_budget`"
        ),
    )
    insert_chunks_max: int = Field(
        1_000_000,
        ge=65_536,
        validation_alias=_names("insert_chunks_max"),
        description=(
            "Insert batch size in chunks: requests are combined into one insert up to this size; a larger request is inserted "
            "alone. An engine step counts as one chunk, and so do 16 bytes of samples"
        ),
    )
    retry_after_s: int = Field(
        2,
        ge=1,
        description="Seconds in the Retry-After header of 429 and 503 replies. A tenant over its limit may get another value, up to 60 s",
    )
    stall_ms: float = Field(STALL_MS, gt=0, description="Shortest gap, in ms, that is attributed to causes")
    stall_excess_ms: float = Field(
        STALL_EXCESS_MS,
        ge=0,
        description="Shortest time, in ms, by which a gap must exceed the healthy step (the cause `base`) to be stored as a stall",
    )
    attribute_every_s: float = Field(5.0, gt=0, description="Shortest time from one attribution run to the next, in seconds")
    attribute_grace_s: float = Field(
        3.0,
        ge=0,
        validation_alias=_names("attribute_grace_s"),
        description=(
            "Grace period in seconds: a stream is attributed this long after it was received, so that its other vantages can arrive"
        ),
    )
    slo_gap_ms: float = Field(
        SLO_GAP_MS,
        gt=0,
        description="Gap limit of the default objective: a stream with a longer gap, in ms, is not good",
    )
    slo_first_output_ms: float = Field(
        SLO_FIRST_OUTPUT_MS,
        gt=0,
        description="First-output limit of the default objective: a stream with a later first output, in ms after its start, is not good",
    )
    rollup_every_s: float = Field(
        10.0,
        gt=0,
        description="Time from one run to the next of the rollups that dashboards and alerts read, in seconds",
    )
    chunking_every_s: float = Field(3600.0, gt=0, description="Pause between two searches for changes in chunking, in seconds")
    web_url: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="Base URL under which browsers reach the web page, for links in exported spans. None: spans have no link",
    )
    traces_export_endpoint: str = Field(
        "",
        description=(
            "Base URL of a trace backend's OTLP/HTTP receiver (Jaeger, Tempo, a Collector) to which `legato serve` sends spans about "
            "stalls; `/v1/traces` is added. None: no spans are sent"
        ),
    )
    traces_export_headers: SecretStr = Field(
        SecretStr(""),
        description=(
            "Headers of these requests, such as a token: `NAME=VALUE,NAME=VALUE` with values percent-encoded, as in "
            "`OTEL_EXPORTER_OTLP_HEADERS`"
        ),
    )
    traces_export_parent: Literal["around", "stream"] = Field(
        "around",
        description=(
            "What the spans about a stream are children of. `around`: the span around the stream, because the trace backend lacks the "
            "stream's own span where the SDK sends to Legato alone; a stream of another library: its own span. `stream`: always the "
            "stream's own span"
        ),
    )
    traces_export_settle_s: float = Field(
        60.0,
        ge=0,
        description=(
            "Age of a stream, in seconds since it was received, at which its verdicts are exported. Verdicts that later evidence changes "
            "are not exported again"
        ),
    )
    traces_export_every_s: float = Field(5.0, gt=0, description="Pause between two exports of spans about stalls, in seconds")
    query_seconds_max: int = Field(
        8,
        ge=1,
        description=(
            "Longest run time of a read query, in seconds. A longer query fails; with an embedded store, one that the engine cannot "
            "interrupt is ended 1.5 s later with the process of the store, which is started again"
        ),
    )
    query_memory_bytes_max: int = Field(
        2**30,
        ge=1,
        description=(
            "Memory that a read query may use, in bytes; its result may have an eighth of this. A larger query fails; with an embedded "
            "store, the process of the store is ended and started again when it has grown by one and a half times this"
        ),
    )
    query_rows_max: int = Field(1_000_000, ge=1, description="Number of rows that a read query may return. A query with more rows fails")
    queries_max: int = Field(4, ge=1, description="Number of read queries that run at the same time. Further queries wait")
    queries_waiting_max: int = Field(
        512,
        ge=0,
        description=(
            "Number of read queries that may wait; each 64 KB of a query counts as one. Beyond it, queries get 503. A dashboard sends up "
            "to 20 at once"
        ),
    )

    @field_validator("schema_dir", "dashboards_dir")
    @classmethod
    def _found(cls, folder: pathlib.Path) -> pathlib.Path:
        """A relative folder that is not in the working directory is one of Legato's own data folders: `schema/cluster` works anywhere."""
        own = _data_root() / folder
        return own if not folder.exists() and own.is_dir() else folder

    @property
    def store_path(self) -> pathlib.Path:
        """The embedded store's folder, whichever link names it, as for its lock. Raises ``SettingsError`` if the store is a server."""
        address = address_of(self.store)
        if isinstance(address, Address):
            raise SettingsError(f"LEGATO_STORE is {address}: this command needs an embedded store (chdb:///absolute/path)")
        return pathlib.Path(os.path.realpath(address))

    @property
    def server(self) -> Address | None:
        """The ClickHouse server that is the store; None for an embedded store."""
        address = address_of(self.store)
        return address if isinstance(address, Address) else None


def load(**overrides: object) -> Settings:
    """Return the settings from the environment; ``overrides`` (command-line options) take precedence. Raises ``SettingsError``."""
    unknown = sorted(overrides.keys() - Settings.model_fields.keys())
    if unknown:
        raise TypeError(f"{', '.join(unknown)}: no such setting")
    try:
        settings = Settings(**{key: value for key, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = "LEGATO_" + "_".join(str(part) for part in first["loc"]).upper().removeprefix("LEGATO_")
        raise SettingsError(f"{name} has value {first.get('input')!r}: {first['msg']}") from None
    address_of(settings.store)
    return settings


def deprecations(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return one line for each variable that is set under its earlier name."""
    present = {name.upper() for name in environ}
    return [
        f"{_variable(earlier)} is deprecated: use {_variable(field)}"
        + (f", which is set and takes precedence; remove {_variable(earlier)}" if _variable(field) in present else " instead")
        for field, earlier in _EARLIER_NAMES.items()
        if _variable(earlier) in present
    ]
