"""`legato serve` and `legato schema` as processes: the lock, the admin socket, start and stop."""

from __future__ import annotations

import itertools
import pathlib
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from helpers.servers.serving import Served, legato, legato_json, post_streams, serve_process
from helpers.servers.stores import copy_migrated
from helpers.servers.waiting import until

SCHEMA = pathlib.Path(__file__).resolve().parents[3] / "schema"
NEWEST = len(list(SCHEMA.glob("*.sql")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running `legato serve` on a store with a path longer than a socket path may be."""
    folder = tmp_path_factory.mktemp("admin") / ("a-long-name-" * 6) / ("and-another-" * 6)
    with serve_process(folder / "store") as made:
        yield made


def post(server: Served, spans: int) -> httpx.Response:
    """Send native spans in one request and return the reply."""
    return post_streams(server, spans, timeout_s=5)


def send(server: Served, spans: int) -> None:
    """Send native spans, which must be acknowledged."""
    reply = post(server, spans)
    assert reply.status_code == 200, reply.content


def test_status_and_apply_use_the_admin_socket(server: Served) -> None:
    """While serve holds the store, commands use its admin socket."""
    status = legato_json("schema", "status", environ=server.environ)
    assert status["newest_applied"] == len(status["files"]) == len(list(SCHEMA.glob("*.sql")))
    assert all(file["applied"] and not file["changed"] for file in status["files"])
    applied = legato("schema", "apply", environ=server.environ)
    assert applied.returncode == 0 and "0 applied; the schema is current" in applied.stdout
    assert "0002" in legato("schema", "status", environ=server.environ).stdout


def test_only_the_owner_can_open_the_socket(server: Served) -> None:
    """Only the owner can access the socket, the lock and the folder of the store."""
    listener = server.store.with_name("store.admin")
    assert stat.S_ISSOCK(listener.stat().st_mode) and stat.S_IMODE(listener.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.store.with_name("store.lock").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.store.stat().st_mode) == 0o700


def test_the_admin_commands_are_not_on_the_network(server: Served) -> None:
    """Neither TCP port serves the admin commands."""
    for url in (server.otlp, server.read):
        assert httpx.post(f"{url}/schema/apply").status_code == 404


def test_a_second_serve_on_the_same_store_is_refused(server: Served) -> None:
    """The error is one line with the first process's id; the first continues."""
    result = legato("serve", "--otlp-port", "1024", "--read-port", "1025", environ=server.environ)
    assert result.returncode == 1
    assert f"in use by process {server.process.pid}" in result.stderr and "Traceback" not in result.stderr
    assert httpx.get(f"{server.otlp}/readyz").status_code == 200


def test_a_port_in_use_is_one_line(server: Served, tmp_path: pathlib.Path) -> None:
    """The error names the setting; neither socket nor lock remains."""
    result = legato("serve", environ={**server.environ, "LEGATO_STORE": f"chdb://{tmp_path}/store"})
    assert result.returncode == 1 and "LEGATO_OTLP_PORT" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "store.admin").exists()


def test_both_ports_listen_on_loopback_only(server: Served) -> None:
    """Another address of the host refuses connections."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.2"
    for url in (server.otlp, server.read):
        with pytest.raises(OSError), socket.create_connection((address, int(url.rsplit(":", 1)[1])), timeout=2):
            pass


def test_acknowledged_spans_survive_a_stop_and_a_kill(tmp_path: pathlib.Path) -> None:
    """SIGTERM while requests arrive: each is answered with 200 or 503 until the port is closed, and what was acknowledged is stored.

    Then the exit status is 0 and the socket is removed; after SIGKILL the next start replaces the stale socket.
    """
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    with serve_process(store) as first:
        acknowledged = acknowledged_until_closed(first)
        assert first.process.wait(20) == 0
        assert not (tmp_path / "store.admin").exists()
    with serve_process(store) as second:
        stored = int(httpx.post(second.read, content="SELECT count() FROM streams").text)
        assert stored >= acknowledged >= 60
        send(second, 2)
        second.process.kill()
        second.process.wait(20)
        assert (tmp_path / "store.admin").exists()
    with serve_process(store) as third:
        assert httpx.post(third.read, content="SELECT count() FROM streams").text == f"{stored + 2}\n"
        assert stat.S_IMODE((tmp_path / "store.admin").stat().st_mode) == 0o600


def acknowledged_until_closed(served: Served) -> int:
    """Send spans, SIGTERM before the 21st request, and more until the port is closed; return how many were acknowledged."""
    acknowledged, stopped_at = 0, 0.0
    for number in itertools.count():
        if number == 20:
            served.process.send_signal(signal.SIGTERM)
            stopped_at = time.monotonic()
        try:
            status = post(served, 3).status_code
        except httpx.TransportError:
            assert number >= 20, "the port was closed before SIGTERM"
            break
        assert status == 200 or (status == 503 and number >= 20), (number, status)
        acknowledged += 3 * (status == 200)
        assert number < 20 or time.monotonic() - stopped_at < 10, "still answering 10 s after SIGTERM"
    return acknowledged


def test_the_schema_is_applied_without_a_server(tmp_path: pathlib.Path) -> None:
    """The command applies the schema itself; a second run has nothing to apply."""
    environ = {"LEGATO_STORE": f"chdb://{tmp_path}/store"}
    assert "no store at" in legato("schema", "status", environ=environ).stderr
    result = legato("schema", "apply", environ=environ)
    assert "applied 0001_schema_migrations" in result.stdout and f"{NEWEST} applied" in result.stdout
    assert "0 applied" in legato("schema", "apply", environ=environ).stdout


def test_a_newer_store_stops_serve_in_one_line(tmp_path: pathlib.Path) -> None:
    """Serve and the command both stop, and change nothing."""
    environ = {"LEGATO_STORE": f"chdb://{tmp_path}/store"}
    copy_migrated(tmp_path / "store")
    older = tmp_path / "schema"
    older.mkdir()
    for file in sorted(SCHEMA.glob("*.sql"))[:3]:
        (older / file.name).write_bytes(file.read_bytes())
    for command in (["schema", "apply"], ["serve", "--otlp-port", "1024", "--read-port", "1025"]):
        result = legato(*command, environ={**environ, "LEGATO_SCHEMA_DIR": str(older)})
        assert result.returncode == 1, result.stdout
        assert f"is at {NEWEST}, this version of Legato has 3 files" in result.stderr and "Traceback" not in result.stderr


def test_a_running_query_does_not_delay_the_exit(tmp_path: pathlib.Path) -> None:
    """SIGTERM cancels running queries: the client receives an error, and the exit does not wait for the query's time limit."""
    with serve_process(tmp_path / "store", LEGATO_QUERY_SECONDS_MAX="60") as served:
        replies: list[httpx.Response] = []
        endless = "SELECT count() FROM numbers(100000000000) WHERE sipHash64(number) = 1"

        def run_query() -> None:
            replies.append(httpx.post(served.read, content=endless, timeout=100))

        reader, before_s = threading.Thread(target=run_query), cpu_s(served)
        reader.start()
        # The store shows running queries to no reader, but they take processor time.
        until(lambda: cpu_s(served) > before_s + 1)
        started = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(20) == 0
        # The first of the waits that it must not take: requests have ten seconds.
        assert time.monotonic() - started < 10
        reader.join(20)
    assert [reply.status_code for reply in replies] == [500] and "cancelled" in replies[0].text


def cpu_s(served: Served) -> float:
    """Return the processor time of `legato serve` and of its children, as it reports it."""
    (total_s,) = re.findall(r"^legato_cpu_seconds_total (\S+)$", httpx.get(f"{served.otlp}/metrics").text, re.MULTILINE)
    return float(total_s)
