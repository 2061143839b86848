"""The settings of the `legato` command: one class, validated once at start.

One idea: every setting is a field with a default, a unit in its name and a sentence; the environment variable is the field's name in
capitals after ``LEGATO_``. docs/reference.md is held against these fields by a test. No module reads the environment but this one
(and `cli_read`, for who asks).
"""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, STALL_EXCESS_MS, STALL_MS
from legato_ingest.errors import SettingsError

__all__ = ["Address", "Settings", "address_of", "load"]


_PORT, _TLS_PORT = 8123, 8443
_FORM = "chdb:///absolute/path (embedded), clickhouse://USER@HOST:8123/DATABASE, or clickhouses:// with TLS"


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

    model_config = SettingsConfigDict(env_prefix="LEGATO_", frozen=True, extra="ignore")

    store: str = Field(
        default_factory=_default_store,
        description="Where rows are kept: chdb:///absolute/path (embedded), or clickhouse[s]://USER@HOST:8123/DATABASE ([s]: TLS)",
    )
    store_password: SecretStr = Field(SecretStr(""), description="The password of a ClickHouse server's user")
    schema_dir: pathlib.Path = Field(default_factory=_default_schema, description="Folder of the numbered SQL files")
    dashboards_dir: pathlib.Path = Field(
        default_factory=_default_dashboards, description="Folder of the dashboards' JSON and of the alert rules' SQL"
    )
    grafana_token: SecretStr = Field(SecretStr(""), description="A Grafana service account's token, for `legato dashboards`")
    grafana_user: str = Field("", description="Instead of a token: a user of Grafana")
    grafana_password: SecretStr = Field(SecretStr(""), description="That user's password")
    tokens_file: pathlib.Path | None = Field(None, description="Who may write and read, as which tenant: `legato token` writes it")
    tls_cert_file: pathlib.Path | None = Field(None, description="Certificate (PEM, with its chain) of both doors, which then speak TLS")
    tls_key_file: pathlib.Path | None = Field(None, description="Its key")
    tenant_bytes_per_s: int = Field(0, ge=0, description="Bytes a tenant may send a second, ten seconds' worth at once; 0: any")
    tenant_waiting_bytes_max: int = Field(128 * 2**20, ge=0, description="Bytes of one tenant's requests that may wait; 0: any")
    tenant_names_max: int = Field(0, ge=0, description="Names (services, models, routes, …; series) a tenant may bring an hour; 0: any")
    host: str = Field("127.0.0.1", description="Address of the OTLP door; needs tokens where it is not loopback")
    otlp_port: int = Field(4318, ge=1, le=65_535, description="Port of OTLP over HTTP, health and metrics")
    read_host: str = Field("127.0.0.1", description="Address of the read door; beyond loopback it needs tokens or LEGATO_READ_PASSWORD")
    read_port: int = Field(8123, ge=1, le=65_535, description="Port of the read-only ClickHouse endpoint")
    read_user: str = Field("legato", pattern=r"^[^:\x00-\x20\x7f]+$", description="Whose password the read door takes")
    read_password: SecretStr = Field(SecretStr(""), description="What every reader must then give; not on loopback: 12 characters or more")
    retention_days: int = Field(90, ge=0, le=36_500, description="Streams and samples from longer ago are refused and dropped; 0 keeps all")
    retention_timelines_days: int = Field(
        0, ge=0, le=36_500, description="Raw timelines from longer ago are dropped, their streams' statistics stay; 0: with their streams"
    )
    retention_rollups_days: int = Field(400, ge=0, le=36_500, description="Minutes and hours of dashboards are kept so long; 0 keeps all")
    body_bytes_max: int = Field(64 * 2**20, ge=1, description="Largest request body, also after decompression")
    queue_bytes_max: int = Field(256 * 2**20, ge=1, description="Bytes of bodies and rows that may wait; beyond it requests get 429")
    decode_requests_max: int = Field(4, ge=1, description="Requests that are decoded at the same time")
    chunks_per_request_max: int = Field(8_388_608, ge=65_536, description="Chunks that one request's timelines may declare")
    commit_chunks_max: int = Field(1_000_000, ge=65_536, description="Chunks in one insert (a larger request is an insert of its own)")
    retry_after_s: int = Field(2, ge=1, description="What 429 and 503 replies tell the sender to wait")
    stall_ms: float = Field(STALL_MS, gt=0, description="Gaps of at least this are judged")
    stall_excess_ms: float = Field(STALL_EXCESS_MS, ge=0, description="Of which at least this must be beyond the engine's healthy step")
    attribute_every_s: float = Field(5.0, gt=0, description="Pause between two sweeps of the attribution")
    attribute_settle_s: float = Field(5.0, ge=0, description="How long after a stream came in it is judged: its other vantages may follow")
    slo_gap_ms: float = Field(SLO_GAP_MS, gt=0, description="A stream with a longer gap is not good; then `legato rollup --since all`")
    slo_first_output_ms: float = Field(
        SLO_FIRST_OUTPUT_MS,
        gt=0,
        description="A stream with a later first output is not good; after a change run `legato rollup --since all`",
    )
    rollup_every_s: float = Field(5.0, gt=0, description="Pause between two runs of the rollups that dashboards and alerts read")
    chunking_every_s: float = Field(3600.0, gt=0, description="Pause between two searches for changes in chunking")
    query_seconds_max: int = Field(30, ge=1, description="Longest a read query may run")
    query_memory_bytes_max: int = Field(2 * 2**30, ge=1, description="Most memory that a read query may use")
    query_rows_max: int = Field(1_000_000, ge=1, description="Most rows that a read query may return")
    queries_max: int = Field(4, ge=1, description="Read queries that run at the same time")
    queries_waiting_max: int = Field(64, ge=0, description="Read queries that may wait; a dashboard asks some 30 at once")

    @field_validator("schema_dir", "dashboards_dir")
    @classmethod
    def _found(cls, folder: pathlib.Path) -> pathlib.Path:
        """A relative folder that is not in the working directory is one of Legato's own data folders: `schema/cluster` works anywhere."""
        own = _data_root() / folder
        return own if not folder.exists() and own.is_dir() else folder

    @property
    def store_path(self) -> pathlib.Path:
        """The embedded store's folder. Raises ``SettingsError`` where a server is the store."""
        address = address_of(self.store)
        if isinstance(address, Address):
            raise SettingsError(f"LEGATO_STORE is {address}: this is for an embedded store (chdb:///absolute/path)")
        return address

    @property
    def server(self) -> Address | None:
        """The ClickHouse server that is the store; None where it is embedded."""
        address = address_of(self.store)
        return address if isinstance(address, Address) else None


def load(**overrides: object) -> Settings:
    """The settings from the environment; ``overrides`` (from the command line) win. Raises ``SettingsError``."""
    try:
        settings = Settings(**{key: value for key, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = "LEGATO_" + "_".join(str(part) for part in first["loc"]).upper().removeprefix("LEGATO_")
        raise SettingsError(f"{name} has value {first.get('input')!r}: {first['msg']}") from None
    address_of(settings.store)
    return settings


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and as whom Legato asks it. The password is elsewhere."""

    host: str
    port: int
    user: str
    database: str
    tls: bool

    def __str__(self) -> str:
        return f"clickhouse{'s' if self.tls else ''}://{self.user}@{self.host}:{self.port}/{self.database}"


def address_of(url: str) -> Address | pathlib.Path:
    """The server of ``clickhouse://USER@HOST:PORT/DATABASE`` (``clickhouses://`` with TLS), or the folder of ``chdb:///PATH``.

    Raises ``SettingsError``, which holds no password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(f"LEGATO_STORE is no URL: expected {_FORM}") from None
    if parts.password is not None:
        raise SettingsError(f"LEGATO_STORE holds a password, which others can see there: set LEGATO_STORE_PASSWORD; expected {_FORM}")
    if parts.scheme == "chdb" and parts.path.startswith("/") and not parts.netloc:
        return pathlib.Path(parts.path)
    if parts.scheme not in ("clickhouse", "clickhouses") or not parts.hostname or not _is_plain(parts):
        raise SettingsError(f"LEGATO_STORE is {parts.scheme}://…, expected {_FORM}")
    tls = parts.scheme == "clickhouses"
    user, database = unquote(parts.username or "default"), unquote(parts.path.strip("/")) or "default"
    return Address(parts.hostname, port or (_TLS_PORT if tls else _PORT), user, database, tls)


def _is_plain(parts: SplitResult) -> bool:
    return not parts.query and not parts.fragment and "/" not in parts.path.strip("/")
