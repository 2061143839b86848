"""Tests of the settings: working defaults, and a one-line error for an invalid value."""

from __future__ import annotations

import pathlib
import re

import pytest

from legato_ingest.address import Address, address_of
from legato_ingest.errors import SettingsError
from legato_ingest.metrics import Metrics
from legato_ingest.settings import Settings, deprecations, load

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference.md"
RENAMED = {
    "TENANT_NAMES_MAX": "tenant_cardinality_max",
    "TENANT_WAITING_BYTES_MAX": "tenant_in_flight_bytes_max",
    "COMMIT_CHUNKS_MAX": "insert_chunks_max",
    "ATTRIBUTE_SETTLE_S": "attribute_grace_s",
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"LEGATO_{name.upper()}", raising=False)
    for name in RENAMED:
        monkeypatch.delenv(f"LEGATO_{name}", raising=False)


def test_the_defaults_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback, the usual ports, a store in the user's data folder, the repository's schema."""
    monkeypatch.setenv("XDG_DATA_HOME", "/data/share")
    settings = load()
    assert (settings.host, settings.otlp_port, settings.read_port) == ("127.0.0.1", 4318, 8123)
    assert settings.store_path == pathlib.Path("/data/share/legato/store")
    assert (settings.schema_dir / "0001_schema_migrations.sql").is_file()


def test_options_take_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that was not given is None, and an unknown name is an error of the program."""
    monkeypatch.setenv("LEGATO_OTLP_PORT", "5000")
    monkeypatch.setenv("LEGATO_READ_PORT", "5001")
    settings = load(otlp_port=6000, read_port=None)
    assert (settings.otlp_port, settings.read_port) == (6000, 5001)
    with pytest.raises(TypeError, match="otlp_prt: no such setting"):
        load(otlp_prt=6000)


@pytest.mark.parametrize(("name", "value"), [
    ("OTLP_PORT", "0"), ("OTLP_PORT", "65536"), ("OTLP_PORT", "http"),
    ("RETENTION_DAYS", "-1"), ("QUERIES_MAX", "0"), ("BODY_BYTES_MAX", "1.5"), ("CORS_ORIGINS", "https://a/page"), ("CORS_ORIGINS", "a"),
    ("CHUNKS_PER_REQUEST_MAX", "65535"), ("STORE", "chdb://relative/path"), ("STORE", "http://localhost:8123"),
    ("STORE", "/a/path"), ("STORE", ""), ("BODY_BYTES_MAX", "2147483648"),
])  # fmt: skip
def test_an_invalid_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """By its variable."""
    monkeypatch.setenv(f"LEGATO_{name}", value)
    with pytest.raises(SettingsError, match=f"LEGATO_{name}"):
        load()


@pytest.mark.parametrize(("earlier", "field"), RENAMED.items())
def test_earlier_names_still_work(monkeypatch: pytest.MonkeyPatch, earlier: str, field: str) -> None:
    """With a line for the log; the new variable takes precedence, an invalid value is an error, and the option has the new name."""
    assert deprecations() == []
    monkeypatch.setenv(f"LEGATO_{earlier}", "70000")
    assert getattr(load(), field) == 70_000 and getattr(load(**{field: 80_000}), field) == 80_000
    assert deprecations() == [f"LEGATO_{earlier} is deprecated: use LEGATO_{field.upper()} instead"]
    monkeypatch.setenv(f"LEGATO_{field.upper()}", "90000")
    (line,) = deprecations()
    assert getattr(load(), field) == 90_000 and "takes precedence" in line
    monkeypatch.setenv(f"LEGATO_{field.upper()}", "many")
    with pytest.raises(SettingsError, match=f"LEGATO_{field.upper()}"):
        load()


def test_the_reference_has_the_same_descriptions() -> None:
    """Every setting and every metric is described in docs/reference.md in the same words."""
    rows = re.findall(r"^\| `((?:LEGATO|legato)_\w+)` \|(?: [^|]* \|)? (.*) \|$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    first: dict[str, str] = {}
    for name, text in rows:
        first.setdefault(name, text)
    for name, field in Settings.model_fields.items():
        assert field.description == first[f"LEGATO_{name.upper()}"]
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.documentation == first[name].replace("`", "")


def test_settings_do_not_change() -> None:
    """They are validated once, at start."""
    with pytest.raises(ValueError, match="frozen"):
        load().otlp_port = 1


def test_a_relative_data_folder_is_found_anywhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the working directory if it is there, else among Legato's own data; any other folder is left as it is."""
    monkeypatch.chdir(tmp_path)
    assert load(schema_dir="schema/cluster").schema_dir == load().schema_dir / "cluster"
    assert load(schema_dir="no/such/folder").schema_dir == pathlib.Path("no/such/folder")
    (tmp_path / "schema" / "cluster").mkdir(parents=True)
    assert load(schema_dir="schema/cluster").schema_dir == pathlib.Path("schema/cluster")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("clickhouse://legato@ch:8123/legato", Address("ch", 8123, "legato", "legato", False)),
        ("clickhouse://ch", Address("ch", 8123, "default", "default", False)),
        ("clickhouses://ch/x", Address("ch", 8443, "default", "x", True)),
        ("clickhouse://a%40b@[::1]:9/x", Address("::1", 9, "a@b", "x", False)),
        ("chdb:///data/store", pathlib.Path("/data/store")),
    ],
)
def test_a_url_names_a_server_or_a_folder(url: str, address: object) -> None:
    """A server with or without TLS, with defaults for port, user and database; or a folder."""
    assert address_of(url) == address


def test_every_link_names_the_same_store(tmp_path: pathlib.Path) -> None:
    """Its lock and its admin socket are next to it: a command that names a link finds the running server."""
    store, link = tmp_path / "store", tmp_path / "links" / "store"
    link.parent.mkdir()
    link.symlink_to(store)
    # Also before the first start.
    assert load(store=f"chdb://{link}").store_path == load(store=f"chdb://{store}").store_path == store.resolve()


@pytest.mark.parametrize(
    "url",
    ["", "x", "chdb://relative", "chdb:relative", "mysql://h/d", "clickhouse:///d", "clickhouse://h/a/b", "clickhouse://h/d?x=1", "clickhouse://h:x/d",
     "clickhouse://u:secret@h/d", "http://h", "chdb:///a#1", "chdb:///a?b", "chdb:///a?"],
)  # fmt: skip
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    """In one line with the expected form."""
    with pytest.raises(SettingsError, match="expected chdb:///absolute/path") as error:
        address_of(url)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
