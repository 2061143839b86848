"""Settings: defaults that work, one line for what does not."""

from __future__ import annotations

import pathlib

import pytest

from legato_ingest.errors import SettingsError
from legato_ingest.settings import Settings, load


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"LEGATO_{name.upper()}", raising=False)


def test_the_defaults_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback, the usual ports, a store in the user's data folder, the repository's schema."""
    monkeypatch.setenv("XDG_DATA_HOME", "/data/share")
    settings = load()
    assert (settings.host, settings.otlp_port, settings.read_port) == ("127.0.0.1", 4318, 8123)
    assert settings.store_path == pathlib.Path("/data/share/legato/store")
    assert (settings.schema_dir / "0001_schema_migrations.sql").is_file()


def test_the_environment_counts_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that was not given is none."""
    monkeypatch.setenv("LEGATO_OTLP_PORT", "5000")
    monkeypatch.setenv("LEGATO_READ_PORT", "5001")
    settings = load(otlp_port=6000, read_port=None)
    assert (settings.otlp_port, settings.read_port) == (6000, 5001)


@pytest.mark.parametrize(("name", "value"), [
    ("OTLP_PORT", "0"), ("OTLP_PORT", "65536"), ("OTLP_PORT", "http"),
    ("RETENTION_DAYS", "-1"), ("QUERIES_MAX", "0"), ("BODY_BYTES_MAX", "1.5"),
    ("CHUNKS_PER_REQUEST_MAX", "65535"), ("STORE", "chdb://relative/path"), ("STORE", "http://localhost:8123"),
    ("STORE", "/a/path"), ("STORE", ""),
])  # fmt: skip
def test_a_setting_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """By its variable."""
    monkeypatch.setenv(f"LEGATO_{name}", value)
    with pytest.raises(SettingsError, match=f"LEGATO_{name}"):
        load()


def test_every_setting_has_a_sentence() -> None:
    """It is what the reference says."""
    assert all(field.description for field in Settings.model_fields.values())


def test_settings_do_not_change() -> None:
    """They are validated once."""
    with pytest.raises(ValueError, match="frozen"):
        load().otlp_port = 1
