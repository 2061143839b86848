"""TLS certificates: their checks at the start, and both endpoints over TLS."""

from __future__ import annotations

import pathlib
import ssl
import time
from unittest.mock import Mock

import httpx
import pytest

from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.serving import legato, serving
from legato_ingest.auth import tls, tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.errors import SettingsError
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load


def test_a_valid_pair_is_accepted(tmp_path: pathlib.Path) -> None:
    """So is none at all, which means no TLS."""
    certificate, key, _ = issued(tmp_path)
    tls.check(certificate, key)
    tls.check(None, None)


def test_a_certificate_that_expires_soon_is_reported(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is accepted, with a warning that contains the date."""
    certificate, key, _ = issued(tmp_path, days=3)
    tls.check(certificate, key)
    assert "expires on" in caplog.text


def test_an_unusable_pair_is_refused_in_one_line(tmp_path: pathlib.Path) -> None:
    """Expired, missing, not a certificate, with the key of another one, or one file without the other."""
    certificate, key, _ = issued(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "other").mkdir()
    old, old_key, _ = issued(tmp_path / "old", days=-1)
    _, other_key, _ = issued(tmp_path / "other")
    for pair, message in (
        ((old, old_key), "expired on"),
        ((tmp_path / "none", key), "No such file"),
        ((key, key), "not a PEM file with a certificate"),
        ((certificate, other_key), "do not match"),
        ((certificate, None), "only one of"),
        ((None, key), "only one of"),
    ):
        with pytest.raises(SettingsError, match=message) as error:
            tls.check(*pair)
        assert "\n" not in str(error.value) and "PRIVATE" not in str(error.value)


@pytest.fixture
def renewable(tmp_path: pathlib.Path) -> tuple[tls.Certificate, Metrics, pathlib.Path]:
    """A certificate of files in the folder, which expires in five days, and the server's metrics."""
    certificate, key, _ = issued(tmp_path, days=5)
    metrics = Metrics()
    made = tls.Certificate.of(load(tls_cert_file=certificate, tls_key_file=key), metrics)
    assert made is not None and tls.Certificate.of(load(), metrics) is None
    return made, metrics, tmp_path


def faults(metrics: Metrics) -> float:
    """How often a pair could not be used."""
    return metrics.registry.get_sample_value("legato_errors_total", {"stage": "certificate", "type": "SettingsError"}) or 0


def test_a_renewed_pair_is_taken(renewable: tuple[tls.Certificate, Metrics, pathlib.Path], caplog: pytest.LogCaptureFixture) -> None:
    """Once, with a line in the log; files that did not change are not taken again."""
    kept, metrics, folder = renewable
    before, connection = kept.pair, Mock()
    kept.renew()
    assert kept.pair is before and not caplog.text
    kept.choose(connection, None, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    first = connection.context
    issued(folder, days=90)
    kept.renew()
    kept.renew()
    kept.choose(connection, None, first)
    assert kept.pair == ((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes()) != before
    assert connection.context is not first and caplog.text.count("new connections get the renewed certificate") == 1 and not faults(metrics)


def test_a_pair_that_is_half_written_is_no_fault(renewable: tuple[tls.Certificate, Metrics, pathlib.Path]) -> None:
    """One check between the two files, then one behind them."""
    kept, metrics, folder = renewable
    key = (folder / "tls.key").read_bytes()
    before = kept.pair
    issued(folder, days=90)
    new_key = (folder / "tls.key").read_bytes()
    (folder / "tls.key").write_bytes(key)
    kept.renew()
    assert kept.pair is before
    (folder / "tls.key").write_bytes(new_key)
    kept.renew()
    assert kept.pair[1] == new_key and not faults(metrics)


def test_files_that_change_while_they_are_read_wait(
    renewable: tuple[tls.Certificate, Metrics, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was checked and what gRPC gets would be different pairs."""
    kept, _, folder = renewable
    before, real = kept.pair, tls.check
    issued(folder, days=90)

    def check_late(*files: pathlib.Path) -> None:
        real(*files)
        issued(folder, days=80)

    with monkeypatch.context() as patch:
        patch.setattr(tls, "check", check_late)
        kept.renew()
        assert kept.pair is before
    kept.renew()
    assert kept.pair[0] == (folder / "tls.crt").read_bytes()


@pytest.mark.parametrize("fault", ["expired", "gone", "another key", "no certificate"])
def test_an_unusable_pair_leaves_the_one_before_in_use(
    renewable: tuple[tls.Certificate, Metrics, pathlib.Path], caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """It is logged once, in one line without the key, counted from the second check on, and forgotten when the files are good again."""
    kept, metrics, folder = renewable
    before = kept.pair
    if fault == "expired":
        issued(folder, days=-1)
    elif fault == "gone":
        (folder / "tls.key").unlink()
    elif fault == "another key":
        issued(folder)
        (folder / "tls.key").write_bytes(before[1])
    else:
        (folder / "tls.crt").write_text("nothing")
    for count in range(4):
        kept.renew()
        assert faults(metrics) == count
    assert kept.pair is before
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "stays in use until" in error and "\n" not in error and "PRIVATE" not in error
    issued(folder, days=90)
    kept.renew()
    assert kept.pair is not before and faults(metrics) == 3


def test_a_running_server_warns_each_day(
    renewable: tuple[tls.Certificate, Metrics, pathlib.Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that started before the last two weeks says that its certificate expires."""
    kept, _, _ = renewable
    now = time.monotonic()
    for hours, warned in ((1, 0), (25, 1), (26, 1), (50, 2)):
        monkeypatch.setattr(time, "monotonic", lambda hours=hours: now + hours * 3600)
        kept.renew()
        assert caplog.text.count("expires on") == warned


def test_both_endpoints_serve_tls_and_accept_tokens(tmp_path: pathlib.Path) -> None:
    """`legato serve` with a certificate: HTTPS with tokens works at both endpoints, plain HTTP at neither; the CLI reads over HTTPS."""
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
            answer = client.post(f"https://127.0.0.1:{reading}/", content="SELECT 1", headers={"authorization": f"Bearer {read}"})
            assert answer.text == "1\n"
        for port in (otlp, reading):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/")
        given = {"LEGATO_READ_URL": f"https://127.0.0.1:{reading}", "LEGATO_READ_PASSWORD": read, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        report = legato("report", environ=given)
        assert report.returncode == 0, report.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"LEGATO_HOST": "0.0.0.0"}, "no token may write"),
        ({"LEGATO_HOST": "0.0.0.0", "LEGATO_TOKENS_FILE": "readers"}, "no token may write"),
        ({"LEGATO_READ_HOST": "0.0.0.0"}, "token that may read"),
        ({"LEGATO_READ_HOST": "0.0.0.0", "LEGATO_TOKENS_FILE": "writers"}, "token that may read"),
        ({"LEGATO_TOKENS_FILE": "nowhere"}, "legato token add"),
        ({"LEGATO_READ_HOST": "0.0.0.0", "LEGATO_TOKENS_FILE": "readers", "LEGATO_READ_PASSWORD": "short"}, "12 characters or more"),
        ({"LEGATO_TOKENS_FILE": "readers", "LEGATO_READ_PASSWORD": "its own"}, "is also a token"),
    ],
)
def test_remote_hosts_are_served_only_with_authentication(tmp_path: pathlib.Path, settings: dict[str, str], message: str) -> None:
    """Without it, `legato serve` refuses to start with one line that states what to do."""
    own = tokens.add(tmp_path / "readers", "r", "shop", READ)
    settings = {key: own if value == "its own" else value for key, value in settings.items()}
    tokens.add(tmp_path / "writers", "w", "shop", WRITE)
    given = {key: str(tmp_path / value) if key == "LEGATO_TOKENS_FILE" else value for key, value in settings.items()}
    failed = legato("serve", environ={"LEGATO_STORE": f"chdb://{tmp_path}/store", **given})
    assert failed.returncode == 1 and message in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr
