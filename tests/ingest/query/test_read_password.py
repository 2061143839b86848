"""Tests of the read endpoint's password: how readers send it, how others are denied, and that it is never written."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Iterator, Mapping

import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from helpers.platform.goclient import ask, build
from helpers.servers.reading import open_store, read_app
from helpers.servers.serving import Served, legato, serve_process, served
from legato_ingest.cli.client import Reader, ReadError
from legato_ingest.errors import SettingsError
from legato_ingest.metrics import Metrics
from legato_ingest.serve import serve
from legato_ingest.settings import load
from legato_ingest.storage import Store

USER, PASSWORD = "grafana", "p:ss wörd — 漢字 %41+"
# An address of this host that does not count as loopback here, so that no port is open to other hosts during the test.
ELSEWHERE = "127.0.0.2"


def basic(user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """The header of HTTP Basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def keyed(user: str = USER, password: str = PASSWORD) -> dict[bytes, bytes]:
    """ClickHouse's headers."""
    return {b"X-ClickHouse-User": user.encode(), b"X-ClickHouse-Key": password.encode()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema."""
    with open_store(tmp_path_factory.mktemp("password") / "store") as opened:
        yield opened


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    """The endpoint's metrics."""
    return Metrics()


@pytest.fixture(scope="module")
def url(store: Store, metrics: Metrics) -> Iterator[str]:
    """An endpoint with a password."""
    settings = load(read_user=USER, read_password=PASSWORD)
    with served(read_app(settings, store, metrics)) as address:
        yield address


def get(url: str, headers: Mapping[str, str] | Mapping[bytes, bytes] | None = None, **params: str) -> httpx.Response:
    """One query."""
    return httpx.get(url, params={"query": "SELECT 1", **params}, headers=headers)


@pytest.mark.parametrize("headers", [basic(), keyed(), {"authorization": basic()["Authorization"].replace("Basic ", "bAsIc  ")}])
def test_readers_with_the_password(url: str, headers: dict[str, str]) -> None:
    """With either kind of header, by GET and POST, with any characters in it, and under any name of the host."""
    assert get(url, headers).text == httpx.post(url, content="SELECT 1", headers=headers).text == "1\n"
    for host in ("legato.example:8123", "10.0.0.5", "127.0.0.1"):
        assert httpx.get(url, params={"query": "SELECT 1"}, headers=[*httpx.Headers(headers).raw, (b"Host", host.encode())]).text == "1\n"


WRONG: dict[str, Mapping[str, str] | Mapping[bytes, bytes]] = {
    "nothing": {},
    "wrong password": basic(password="wrong-password"),
    "its beginning": basic(password=PASSWORD[:-1]),
    "with more behind it": basic(password=PASSWORD + "x"),
    "no password": basic(password=""),
    "wrong user": basic(user="default"),
    "another case": basic(user=USER.upper()),
    "no user": basic(user=""),
    "no colon": {"Authorization": "Basic " + base64.b64encode(PASSWORD.encode()).decode().rstrip("=")},
    "no base64": {"Authorization": "Basic ä"},
    "broken base64": {"Authorization": basic()["Authorization"][:-1]},
    "base64 and more": {"Authorization": basic()["Authorization"] + " !"},
    "empty": {"Authorization": ""},
    "nothing after Basic": {"Authorization": "Basic"},
    "a token": {"Authorization": f"Bearer {basic()['Authorization'][6:]}"},
    "wrong key": keyed(password="wrong-password"),
    "wrong user with key": keyed(user="x"),
    "a user alone": {b"X-ClickHouse-User": USER.encode()},
    "a key alone": {b"X-ClickHouse-Key": PASSWORD.encode()},
    "as a certificate": {"X-ClickHouse-User": USER, "X-ClickHouse-SSL-Certificate-Auth": "on"},
    "latin-1": {b"X-ClickHouse-User": b"\xff", b"X-ClickHouse-Key": b"\xe4"},
    "both ways": {**basic(), "X-ClickHouse-User": USER},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG.keys())
def test_all_others_are_denied(url: str, metrics: Metrics, headers: Mapping[str, str]) -> None:
    """403 with ClickHouse's code, counted, and without the sent or the expected password."""
    raw = httpx.Headers([(k.encode() if isinstance(k, str) else k, v.encode() if isinstance(v, str) else v) for k, v in headers.items()])
    before = metrics.queries.labels("denied")._value.get()
    for reply in (httpx.get(url, params={"query": "SELECT 1"}, headers=raw), httpx.post(url, content="SELECT 1", headers=raw)):
        assert (reply.status_code, reply.headers["x-clickhouse-exception-code"]) == (403, "516")
        assert reply.text.startswith("Code: 516. DB::Exception: ") and PASSWORD not in reply.text and USER not in reply.text
        assert "www-authenticate" not in reply.headers
    assert metrics.queries.labels("denied")._value.get() == before + 2


@pytest.mark.parametrize("given", [{"user": USER, "password": PASSWORD}, {"password": PASSWORD}, {"user": USER}, {"password": ""}])
def test_it_is_refused_in_a_url(url: str, given: dict[str, str]) -> None:
    """Even the right one, even with the right header: logs keep URLs."""
    for headers in ({}, basic()):
        reply = get(url, headers, **given)
        assert (reply.status_code, reply.headers["x-clickhouse-exception-code"]) == (403, "516")
        assert "must not carry user and password" in reply.text and PASSWORD not in reply.text


def test_a_form_cannot_send_it(url: str) -> None:
    """A web page of another site can send a form."""
    reply = httpx.post(url, files={"query": (None, "SELECT 1"), "user": (None, USER), "password": (None, PASSWORD)})
    assert reply.headers["x-clickhouse-exception-code"] == "516"


def test_a_foreign_origin_is_refused_with_it(url: str, metrics: Metrics) -> None:
    """A browser that has stored the password must not send it for another site."""
    before = metrics.queries.labels("foreign")._value.get()
    for origin in ("https://evil.example", "null"):
        assert get(url, {**basic(), "Origin": origin}).status_code == 403
        assert httpx.get(f"{url}/ping", headers={"Origin": origin}).status_code == 403
    assert metrics.queries.labels("foreign")._value.get() == before + 4
    assert get(url, {**basic(), "Origin": "http://localhost:3000"}).text == "1\n"


def test_a_ping_needs_none(url: str) -> None:
    """Health checks have no credentials, and use any name."""
    assert httpx.get(f"{url}/ping", headers={"Host": "legato.example"}).text == "Ok.\n"
    assert httpx.get(f"{url}/ping", headers=basic(password="wrong-password")).text == "Ok.\n"


def test_clickhouse_connect(url: str) -> None:
    """The driver connects with it, and gets ClickHouse's code without it."""
    port = int(url.rsplit(":", 1)[1])
    with clickhouse_connect.get_client(host="127.0.0.1", port=port, username=USER, password=PASSWORD) as opened:
        assert opened.query("SELECT count() FROM streams").result_rows == [(0,)] and opened.ping()
    for user, password in ((None, ""), (USER, "wrong-password")):
        with pytest.raises(DatabaseError) as raised:
            clickhouse_connect.get_client(host="127.0.0.1", port=port, username=user, password=password)
        assert raised.value.code == 516 and "wrong-password" not in str(raised.value)


def test_clickhouse_go(url: str, tmp_path: pathlib.Path) -> None:
    """The driver of Grafana's plugin connects with it."""
    program = build(tmp_path)
    right = {"LEGATO_READ_USER": USER, "LEGATO_READ_PASSWORD": PASSWORD}
    answers = ask(program, url, "-only", "server,database_sql,big", environ=right)
    assert answers["database_sql"]["facts"] == {"streams": 0} and answers["big"]["facts"]["rows"] == 100_000
    for wrong in ({}, {**right, "LEGATO_READ_PASSWORD": "wrong-password"}):
        answer = ask(program, url, "-only", "server", environ=wrong)["server"]
        assert (answer["status"], answer["code"]) == (403, 516) and "wrong-password" not in answer["error"]


def test_the_commands_reader(url: str) -> None:
    """With it, rows; without it, one line that names the variables; in the URL, nothing is sent."""
    assert Reader(url, USER, PASSWORD).rows("SELECT 1 AS a") == [{"a": 1}]
    for reader in (Reader(url), Reader(url, USER, "wrong-password"), Reader(url, "x", PASSWORD)):
        with pytest.raises(ReadError, match="set LEGATO_READ_USER and LEGATO_READ_PASSWORD") as raised:
            reader.rows("SELECT 1")
        assert PASSWORD not in str(raised.value) and "wrong-password" not in str(raised.value)
    with pytest.raises(ReadError, match="contains a user or a password") as raised:
        Reader(url.replace("://", "://grafana:secret-word@"))
    assert "secret-word" not in str(raised.value)


def test_commands_read_it_from_the_environment(url: str) -> None:
    """And only from there: other users can see a command's arguments."""
    environ = {"LEGATO_READ_URL": url, "LEGATO_READ_USER": USER, "LEGATO_READ_PASSWORD": PASSWORD}
    assert legato("report", environ=environ).returncode == 0
    denied = legato("report", environ={**environ, "LEGATO_READ_PASSWORD": "wrong-password"})
    assert denied.returncode == 1 and "LEGATO_READ_PASSWORD" in denied.stderr and "wrong-password" not in denied.stderr + denied.stdout
    assert "Traceback" not in denied.stderr and "password" not in legato("report", "--help").stdout.lower()


def test_settings_never_show_it() -> None:
    """Not as text, not as data, and not in the error of another setting."""
    settings = load(read_password=PASSWORD)
    for shown in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json(), f"{settings.read_password}"):
        assert PASSWORD not in shown and PASSWORD.encode("unicode_escape").decode() not in shown
    with pytest.raises(SettingsError) as raised:
        load(read_password=PASSWORD, read_port="http")
    assert "LEGATO_READ_PORT" in str(raised.value) and PASSWORD not in str(raised.value)


@pytest.mark.parametrize("user", ["", "a:b", "a b", "a\n"])
def test_a_user_that_no_header_can_carry_is_an_error(user: str) -> None:
    """The error names the setting."""
    with pytest.raises(SettingsError, match="LEGATO_READ_USER"):
        load(read_user=user)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", ELSEWHERE, "10.0.0.5", "legato.example", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("password", ["", "elevenchars"])
def test_serve_beyond_loopback_needs_a_password(tmp_path: pathlib.Path, host: str, password: str) -> None:
    """Of 12 characters; a one-line error comes before it creates a store or opens a port."""
    settings = load(read_host=host, read_password=password, store=f"chdb://{tmp_path}/store")
    with pytest.raises(SettingsError, match="set LEGATO_READ_PASSWORD to 12 characters or more") as raised:
        serve(settings)
    assert not list(tmp_path.iterdir()) and "elevenchars" not in str(raised.value)


def test_the_command_reports_it(tmp_path: pathlib.Path) -> None:
    """One line and status 1."""
    environ = {"LEGATO_READ_HOST": "0.0.0.0", "LEGATO_READ_PASSWORD": "elevenchars", "LEGATO_STORE": f"chdb://{tmp_path}/store"}
    run = legato("serve", environ=environ)
    assert run.returncode == 1 and "LEGATO_READ_PASSWORD" in run.stderr and "elevenchars" not in run.stderr + run.stdout


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """The real command on another address, and its URL."""
    settings = {"LEGATO_READ_HOST": ELSEWHERE, "LEGATO_READ_USER": USER, "LEGATO_READ_PASSWORD": PASSWORD}
    with serve_process(tmp_path_factory.mktemp("opened") / "store", **settings) as running:
        yield running, running.read.replace("127.0.0.1", ELSEWHERE)


def test_serve_opens_only_the_read_endpoint(opened: tuple[Served, str]) -> None:
    """The OTLP endpoint stays on loopback."""
    running, elsewhere = opened
    assert get(elsewhere, basic()).text == "1\n" and get(elsewhere).status_code == 403
    for address in (running.read, running.otlp.replace("127.0.0.1", ELSEWHERE)):
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)
    counted = httpx.get(f"{running.otlp}/metrics").text
    assert 'legato_queries_total{result="denied"} 1.0' in counted and PASSWORD not in counted


def test_serve_never_writes_it(opened: tuple[Served, str]) -> None:
    """Not to its output, after right and wrong passwords, and not to any file in or next to its store."""
    running, elsewhere = opened
    assert get(elsewhere, basic(), password=PASSWORD).status_code == get(elsewhere, basic(user="x")).status_code == 403
    assert get(elsewhere, {**basic(), "Content-Type": "multipart/form-data"}).status_code == 200
    assert get(elsewhere, basic(), query="SELECT FROM WHERE").status_code == 400
    running.process.terminate()
    said = running.process.communicate(timeout=60)[0]
    assert "read  http" in said
    needle = PASSWORD.encode()
    encoded = basic()["Authorization"].removeprefix("Basic ").encode()
    written = {str(path): path.read_bytes() for path in running.store.parent.rglob("*") if path.is_file()}
    for where, content in {**written, "its output": said.encode()}.items():
        assert needle not in content and encoded not in content, where
