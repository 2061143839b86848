"""TLS at both doors, and what is wrong with a certificate is said before a door opens."""

from __future__ import annotations

import pathlib
import ssl

import httpx
import pytest

from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.serving import legato, serving
from legato_ingest.auth import tls, tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.errors import SettingsError


def test_a_good_pair_is_taken(tmp_path: pathlib.Path) -> None:
    """And neither is no TLS."""
    certificate, key, _ = issued(tmp_path)
    tls.check(certificate, key)
    tls.check(None, None)


def test_one_that_ends_soon_is_told(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It serves, with a warning that says when."""
    certificate, key, _ = issued(tmp_path, days=3)
    tls.check(certificate, key)
    assert "expires on" in caplog.text


def test_what_cannot_serve_is_refused_in_one_line(tmp_path: pathlib.Path) -> None:
    """Expired, not there, no certificate, another's key, one without the other."""
    certificate, key, _ = issued(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "other").mkdir()
    old, old_key, _ = issued(tmp_path / "old", days=-1)
    _, other_key, _ = issued(tmp_path / "other")
    for pair, said in (
        ((old, old_key), "expired on"),
        ((tmp_path / "none", key), "No such file"),
        ((key, key), "no certificate"),
        ((certificate, other_key), "do not go together"),
        ((certificate, None), "go together"),
        ((None, key), "go together"),
    ):
        with pytest.raises(SettingsError, match=said) as error:
            tls.check(*pair)
        assert "\n" not in str(error.value) and "PRIVATE" not in str(error.value)


def test_both_doors_speak_tls_and_take_tokens(tmp_path: pathlib.Path) -> None:
    """`legato serve` with a certificate: HTTPS with tokens works on both doors, plain HTTP on none; the CLI reads through it."""
    certificate, key, authority = issued(tmp_path)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    write = tokens.add(tmp_path / "tokens.toml", "w", "shop", WRITE)
    read = tokens.add(tmp_path / "tokens.toml", "r", "shop", READ)
    otlp, reading = free_port(), free_port()
    environ = {
        "LEGATO_STORE": f"chdb://{tmp_path}/store",
        "LEGATO_OTLP_PORT": str(otlp),
        "LEGATO_READ_PORT": str(reading),
        "LEGATO_TOKENS_FILE": str(tmp_path / "tokens.toml"),
        "LEGATO_TLS_CERT_FILE": str(certificate),
        "LEGATO_TLS_KEY_FILE": str(key),
    }
    with serving(environ):
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with httpx.Client(verify=context) as client:
            assert client.get(f"https://127.0.0.1:{otlp}/readyz").status_code == 200
            headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {write}"}
            assert client.post(f"https://127.0.0.1:{otlp}/v1/traces", headers=headers).status_code == 200
            asked = client.post(f"https://127.0.0.1:{reading}/", content="SELECT 1", headers={"authorization": f"Bearer {read}"})
            assert asked.text == "1\n"
        for port in (otlp, reading):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/")
        given = {"LEGATO_READ_URL": f"https://127.0.0.1:{reading}", "LEGATO_READ_PASSWORD": read, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        report = legato("report", environ=given)
        assert report.returncode == 0, report.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LEGATO_HOST": "0.0.0.0"}, "no token may write"),
        ({"LEGATO_HOST": "0.0.0.0", "LEGATO_TOKENS_FILE": "readers"}, "no token may write"),
        ({"LEGATO_READ_HOST": "0.0.0.0"}, "token that may read"),
        ({"LEGATO_READ_HOST": "0.0.0.0", "LEGATO_TOKENS_FILE": "writers"}, "token that may read"),
        ({"LEGATO_TOKENS_FILE": "nowhere"}, "legato token add"),
        ({"LEGATO_READ_HOST": "0.0.0.0", "LEGATO_TOKENS_FILE": "readers", "LEGATO_READ_PASSWORD": "short"}, "12 characters or more"),
        ({"LEGATO_TOKENS_FILE": "readers", "LEGATO_READ_PASSWORD": "its own"}, "is one of the tokens"),
    ],
)
def test_a_door_opens_to_others_only_where_they_must_say_who_they_are(tmp_path: pathlib.Path, settings: dict[str, str], said: str) -> None:
    """`legato serve` refuses to start, in one line that says what to do."""
    own = tokens.add(tmp_path / "readers", "r", "shop", READ)
    settings = {key: own if value == "its own" else value for key, value in settings.items()}
    tokens.add(tmp_path / "writers", "w", "shop", WRITE)
    given = {key: str(tmp_path / value) if key == "LEGATO_TOKENS_FILE" else value for key, value in settings.items()}
    failed = legato("serve", environ={"LEGATO_STORE": f"chdb://{tmp_path}/store", **given})
    assert failed.returncode == 1 and said in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr
