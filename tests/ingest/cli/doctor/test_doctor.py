"""Tests of `legato doctor`: it finds each seeded fault, names the next step, and finds nothing where all is well."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI

from helpers.builders.batches import received_points, received_spans
from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import native_span, request
from helpers.servers import collector as collectors
from helpers.servers.otlp_grpc import grpc_over
from helpers.servers.ports import free_port
from helpers.servers.reading import read_app, stream
from helpers.servers.receiver import receiver
from helpers.servers.serving import legato, served
from helpers.servers.waiting import until
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.cli.doctor import data, endpoints, grpc_endpoint
from legato_ingest.cli.doctor.findings import Check, Finding, Setup, examine
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.settings import load
from legato_ingest.storage import Store, migrate
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.committer import Committer

HOUR_S = 3600
SCHEMA = pathlib.Path(__file__).resolve().parents[4] / "schema"


@dataclass
class Installation:
    """An installation without faults, and its parts."""

    setup: Setup
    store: Store
    metrics: Metrics
    folder: pathlib.Path

    def findings(self, setup: Setup | None = None) -> dict[str, Finding]:
        """Every check's finding by its name."""
        made = replace(setup or self.setup, answers=set())
        return {finding.check: finding for finding in examine(made, (*endpoints.CHECKS, *grpc_endpoint.CHECKS, *data.CHECKS))}

    def faults(self, setup: Setup | None = None) -> set[str]:
        """The checks that found a fault; each finding is one line and names the next step."""
        found = self.findings(setup)
        assert all(each.todo and "\n" not in each.found + each.todo for each in found.values() if each.state in ("fault", "warning"))
        return {name for name, each in found.items() if each.state == "fault"}


@pytest.fixture
def installation(store: Store, tmp_path: pathlib.Path) -> Iterator[Installation]:
    """Endpoints with tokens over the shared store with the current schema and free disk space."""
    path = tmp_path / "tokens.toml"
    write, everyone = tokens.add(path, "w", "shop", WRITE), tokens.add(path, "op", ALL_TENANTS, READ)
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    serving = load(tokens_file=path)
    with (
        served(otlp_endpoint.create_app(serving, committer, metrics, lambda: True)) as otlp,
        served(read_app(serving, store, metrics)) as reads,
        grpc_over(committer, metrics, tokens_file=path) as over_grpc,
    ):
        own = {"tokens_file": path, "schema_dir": SCHEMA, "read_password": everyone, "otlp_grpc_port": over_grpc.port}
        settings = load(store=f"chdb://{tmp_path}/store", **own)
        yield Installation(Setup(settings, otlp, reads, "", write, everyone), store, metrics, tmp_path)
    committer.close()


def received(store: Store, count: int, age_min: float, vantage: str = "client", *, start_ahead_s: float = 0.0, engine_id: str = "") -> None:
    """Store streams that were received ``age_min`` minutes ago and ended ``start_ahead_s`` after that."""
    body, received_ns = request({"service.name": "shop"}), time.time_ns() - int(age_min * 60e9)
    made = stream()
    for _ in range(count):
        start_ns = received_ns - made["duration_ns"] + int(start_ahead_s * 1e9)
        values = {**made["attributes"], "legato.stream.vantage": vantage, **({"legato.engine.id": engine_id} if engine_id else {})}
        native_span(body, values, start_ns=start_ns, duration_ns=made["duration_ns"])
    rows = received_spans(body, tenant="shop", now_ns=received_ns, limits=Limits())
    assert rows.rejected.num_rows == 0
    store.insert("stream_revs", rows.revs)


def test_a_working_installation_has_no_fault_and_no_warning(installation: Installation) -> None:
    """With an empty store as well."""
    for _ in range(2):
        states = {name: finding.state for name, finding in installation.findings().items()}
        assert set(states.values()) <= {"well", "skipped"}, installation.findings()
        assert states["OTLP endpoint"] == states["read endpoint"] == states["write token"] == states["schema"] == states["disk"] == "well"
        assert states["OTLP over gRPC"] == "well"
        received(installation.store, 30, 1.0)
        received(installation.store, 30, 30.0)


def test_closed_ports(installation: Installation) -> None:
    """Neither endpoint answers: both are reported, and dependent checks are skipped."""
    closed = f"http://127.0.0.1:{free_port()}"
    gone = replace(installation.setup, otlp_url=closed, read_url=closed)
    assert installation.faults(gone) == {"OTLP endpoint", "read endpoint"}
    assert "start `legato serve`" in installation.findings(gone)["OTLP endpoint"].todo


@pytest.mark.parametrize("scheme", ["http", "socks5", "unknown"])
def test_a_proxy_of_the_environment_is_not_asked_about_this_host(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """It does not reach this host: its answer would be taken for that of Legato's port. Elsewhere one that cannot be used is named."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"{scheme}://user:secret@127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert installation.faults() == set()
    if scheme == "unknown":
        found = installation.findings(replace(installation.setup, otlp_url="http://models.example:4318"))["OTLP endpoint"].found
        assert "a proxy of the environment cannot be used" in found and "secret" not in found


def test_another_program_on_the_port(installation: Installation) -> None:
    """It answers, but is not Legato."""
    other = FastAPI()
    with served(other) as url:
        assert installation.faults(replace(installation.setup, otlp_url=url, read_url=url)) == {"OTLP endpoint", "read endpoint"}


def test_a_store_that_does_not_answer(installation: Installation) -> None:
    """The endpoint answers that it is not ready."""
    committer = Committer(installation.store, installation.metrics, queue_bytes_max=2**20, chunks_max=10**5)
    with served(otlp_endpoint.create_app(load(), committer, installation.metrics, lambda: False)) as url:
        found = installation.findings(replace(installation.setup, otlp_url=url))["OTLP endpoint"]
    committer.close()
    assert found.state == "fault" and "its store does not" in found.found


@pytest.mark.parametrize(("token", "said"), [("", "none is set"), ("wrong", "may not write here")])
def test_a_token_that_is_missing_or_wrong(installation: Installation, token: str, said: str) -> None:
    """For writing and reading; no message contains a token."""
    found = installation.findings(replace(installation.setup, token=token))["write token"]
    assert found.state == "fault" and said in found.found and "legato token" in found.todo
    readers = installation.findings(replace(installation.setup, read_token=token))["read endpoint"]
    assert readers.state == "fault" and "LEGATO_READ_PASSWORD" in readers.todo
    assert not token or token not in readers.found + found.found


def test_the_port_of_grpc(installation: Installation) -> None:
    """No server, one of another program, a wrong token, and gRPC switched off."""

    def found(port: int | None, **more: Any) -> tuple[str, str]:
        settings = load(tokens_file=installation.setup.settings.tokens_file, **({} if port is None else {"otlp_grpc_port": port}))
        finding = grpc_endpoint.otlp_grpc(replace(installation.setup, settings=settings, **more))
        return finding.state, finding.found

    own = installation.setup.settings.otlp_grpc_port
    assert found(own)[0] == "well" and found(0) == ("skipped", "LEGATO_OTLP_GRPC_PORT is 0")
    assert found(own, token="wrong") == ("fault", f"127.0.0.1:{own} does not accept this token")
    assert found(own, token="") == ("fault", f"127.0.0.1:{own} needs a token, and none is set")
    assert found(free_port())[0] == "fault"
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    state, said = found(port)
    assert state == "fault" and "not as Legato's OTLP endpoint (UNIMPLEMENTED)" in said
    other.stop(None).wait(10)


def test_a_broken_tokens_file(installation: Installation) -> None:
    """A fault before the next start fails on it; a file that others may write, or without writers, is a warning."""
    path = installation.setup.settings.tokens_file
    assert path is not None
    path.chmod(0o666)
    assert installation.findings()["tokens' file"].state == "warning"
    path.chmod(0o600)
    tokens.remove(path, "w")
    assert "may write" in installation.findings()["tokens' file"].found
    path.write_text("[[token")
    assert "tokens' file" in installation.faults()


def test_a_schema_behind_ahead_of_or_other_than_the_program(installation: Installation) -> None:
    """Each with its own message and numbers."""
    folder = installation.folder / "schema"
    shutil.copytree(SCHEMA, folder)
    settings = load(**{**installation.setup.settings.model_dump(), "schema_dir": folder})
    setup, newest = replace(installation.setup, settings=settings), max(migrate.applied(installation.store))
    (folder / f"{newest + 1:04}_next.sql").write_text("SELECT 1")
    assert f"from {newest + 1:04}" in installation.findings(setup)["schema"].found
    (folder / f"{newest + 1:04}_next.sql").unlink()
    last = next(folder.glob(f"{newest:04}_*.sql"))
    text = last.read_text()
    last.write_text(f"{text} ")
    assert "not the one that was applied" in installation.findings(setup)["schema"].found
    last.unlink()
    assert f"this version has {newest - 1}" in installation.findings(setup)["schema"].found
    assert installation.faults(setup) == {"schema"}


def test_a_clock_an_hour_off(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's clock compared with the store's."""
    real = time.time
    monkeypatch.setattr("legato_ingest.cli.doctor.endpoints.time.time", lambda: real() - HOUR_S)
    found = installation.findings()["clock"]
    assert found.state == "fault" and re.search(r"differ by 3,60\d\.\d s", found.found)


def test_the_disk_is_that_of_the_store_behind_the_read_endpoint(installation: Installation) -> None:
    """Another store in the settings of the command does not matter; a tenant's reader may not see the disk."""
    elsewhere = load(**{**installation.setup.settings.model_dump(), "store": "chdb:///nowhere/store"})
    found = installation.findings(replace(installation.setup, settings=elsewhere))["disk"]
    ((path,),) = installation.store.select("SELECT path FROM system.disks")
    assert found.state == "well" and path in found.found and installation.setup.read_url in found.found and "nowhere" not in found.found
    assert re.search(r"[\d.]+ of [\d,.]+ GiB free \(\d+%\)", found.found)


@pytest.mark.parametrize(("free", "state"), [(2**20, "fault"), (2**29, "warning"), (2**38, "well")])
def test_a_disk_that_is_nearly_full(installation: Installation, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
    """A fault when it is almost full, a warning before: by the answer of the store, and of the local folder if nothing answers."""
    shown = endpoints._DISKS.replace("free_space AS free", f"toUInt64({free}) AS free").replace("total_space AS", f"toUInt64({2**39}) AS")
    monkeypatch.setattr(endpoints, "_DISKS", shown)
    assert installation.findings()["disk"].state == state
    monkeypatch.setattr("legato_ingest.cli.doctor.endpoints.shutil.disk_usage", lambda _: SimpleNamespace(free=free, total=2**39))
    closed = replace(installation.setup, read_url=f"http://127.0.0.1:{free_port()}")
    installation.setup.settings.store_path.mkdir()
    found = installation.findings(closed)["disk"]
    assert found.state == state and str(installation.setup.settings.store_path) in found.found and "does not answer" in found.found


def test_no_disk_where_nothing_answers_and_no_store_is(installation: Installation) -> None:
    """Skipped, with the folder that was looked at; the disk of the folder above it would say nothing about the store."""
    found = installation.findings(replace(installation.setup, read_url=f"http://127.0.0.1:{free_port()}"))["disk"]
    assert found.state == "skipped" and f"no store at {installation.setup.settings.store_path}" in found.found


def test_a_collector_that_is_away_behind_or_has_dropped(installation: Installation) -> None:
    """A real Collector: no answer, another program, a queue over half full, a request that was finally refused."""
    if why := collectors.missing():
        pytest.skip(why)
    gone = replace(installation.setup, collector_metrics_url=f"http://127.0.0.1:{free_port()}/metrics")
    assert installation.faults(gone) == {"Collector"}
    assert installation.faults(replace(installation.setup, collector_metrics_url=f"{installation.setup.otlp_url}/metrics")) == {"Collector"}
    with receiver() as behind:
        settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_QUEUE_BYTES": "20000"}
        with collectors.run(installation.folder / "c", "gateway.yaml", **settings) as running:
            setup = replace(installation.setup, collector_metrics_url=running.metrics_url)
            assert installation.findings(setup)["Collector"].state == "well"
            behind.status = 503
            while posted(running.http) == 200:
                pass
            assert "fullest queue" in installation.findings(setup)["Collector"].found and installation.faults(setup) == {"Collector"}
            behind.status = 401
            until(lambda: "dropped" in installation.findings(setup)["Collector"].found)
            assert installation.faults(setup) == {"Collector"}


def posted(url: str) -> int:
    """The status of the reply to one stream."""
    body = request()
    native_span(body)
    return httpx.post(f"{url}/v1/traces", content=body.SerializeToString(), headers={"content-type": "application/x-protobuf"}).status_code


def test_a_vantage_that_stopped(installation: Installation) -> None:
    """A fault for the server while clients continue; a warning without any streams, as there may be no traffic."""
    received(installation.store, 40, 30.0, "server")
    received(installation.store, 40, 30.0)
    assert installation.findings()["vantages"].state == "warning"
    received(installation.store, 5, 1.0)
    found = installation.findings()["vantages"]
    assert found.state == "fault" and "server of shop (40" in found.found and "client" not in found.found


def test_an_engine_without_steps(installation: Installation) -> None:
    """It serves streams and reports no steps."""
    received(installation.store, 10, 5.0, "server", engine_id="10.0.0.1:8000")
    found = installation.findings()["engine steps"]
    assert found.state == "fault" and "10.0.0.1:8000 (10 streams)" in found.found and "legato-gpu-agent" in found.todo
    # The agent does not read it.
    assert "LEGATO_ENGINE_ID" not in found.todo


def agent_scraped(store: Store, engine_id: str, up: float = 1.0) -> None:
    """An agent scraped this engine just now, with this result."""
    body = metrics_request({"legato.engine.id": engine_id})
    gauge(body, "legato.engine.up", up, time.time_ns())
    store.insert("node_samples", received_points(body, tenant="", now_ns=time.time_ns(), limits=Limits()).samples)


def test_an_engine_with_scraped_metrics_only(installation: Installation) -> None:
    """A warning, because some engines have no steps. Metrics that cannot be read count as none."""
    received(installation.store, 10, 5.0, "server", engine_id="10.0.0.1:8000")
    agent_scraped(installation.store, "10.0.0.1:8000", up=0.0)
    assert installation.findings()["engine steps"].state == "fault"
    agent_scraped(installation.store, "10.0.0.1:8000/1")
    found = installation.findings()["engine steps"]
    assert found.state == "warning" and "only scraped metrics" in found.found and "10.0.0.1:8000 (10 streams)" in found.found
    received(installation.store, 10, 5.0, "server", engine_id="pool/1")
    found = installation.findings()["engine steps"]
    assert found.state == "fault" and "pool/1 (10 streams)" in found.found and "without streams" not in found.found
    agent_scraped(installation.store, "pool/1")
    assert installation.findings()["engine steps"].state == "warning"


def test_an_engine_with_two_ids(installation: Installation) -> None:
    """Its server uses the address of its clients, and the agent reads it on loopback."""
    received(installation.store, 10, 5.0, "server", engine_id="10.0.0.1:8000")
    agent_scraped(installation.store, "127.0.0.1:8000")
    found = installation.findings()["engine steps"]
    assert found.state == "fault" and "without streams: 127.0.0.1:8000" in found.found and "LEGATO_ENGINE_ID" in found.todo


@pytest.mark.parametrize(("ahead_s", "said"), [(HOUR_S, "end after they are received"), (-2 * HOUR_S, "long before they are received")])
def test_an_emitter_with_a_wrong_clock(installation: Installation, ahead_s: float, said: str) -> None:
    """An hour ahead, or behind."""
    received(installation.store, 10, 5.0, start_ahead_s=ahead_s)
    found = installation.findings()["emitters' clocks"]
    assert found.state == "fault" and said in found.found and "shop" in found.found


def test_recordings_that_were_sent_later_are_no_wrong_clock(installation: Installation) -> None:
    """Streams that ended over six minutes, three hours ago, and were received in one moment."""
    for minutes in range(7):
        received(installation.store, 10, 5.0, start_ahead_s=60.0 * minutes - 3 * HOUR_S)
    assert installation.findings()["emitters' clocks"].state == "well"


def test_rejected_spans(installation: Installation) -> None:
    """A warning with the reason."""
    body = request()
    native_span(body, {"legato.stream.timeline": b"\xff"})
    setup = installation.setup
    assert (
        setup.post(f"{setup.otlp_url}/v1/traces", body.SerializeToString(), {"Content-Type": "application/x-protobuf"}).status_code == 200
    )
    found = installation.findings()["rejected"]
    assert found.state == "warning" and "1 timeline" in found.found


def test_work_that_is_behind_or_fails(installation: Installation) -> None:
    """Ten minutes behind is a fault, an error since the start a warning."""
    installation.metrics.errors.labels("attribute", "StoreUnavailable").inc()
    assert installation.findings()["keeping up"].state == "warning"
    installation.metrics.trace_export_lag_seconds.set(760)
    assert "no spans about stalls for 760 s" in installation.findings()["keeping up"].found
    installation.metrics.rollup_lag_seconds.set(3600)
    found = installation.findings()["keeping up"]
    assert found.state == "fault" and "3,600 s behind" in found.found


def test_a_tenants_reader_skips_checks(installation: Installation) -> None:
    """Some checks need a token of all tenants."""
    path = installation.setup.settings.tokens_file
    assert path is not None
    own = tokens.add(path, "r", "shop", READ)
    until(lambda: installation.findings(replace(installation.setup, read_token=own))["read endpoint"].state == "well")
    found = installation.findings(replace(installation.setup, read_token=own))
    assert found["schema"].state == found["keeping up"].state == found["disk"].state == "skipped"


def test_a_failing_check_is_a_finding(installation: Installation) -> None:
    """The other checks run."""

    def broken(_: Setup) -> Finding:
        raise ZeroDivisionError

    found = list(examine(installation.setup, (Check("broken", broken), Check("OTLP endpoint", endpoints.otlp_endpoint))))
    assert [each.state for each in found] == ["fault", "well"]


def test_the_command(installation: Installation) -> None:
    """Text and JSON of the same findings; exit status 1 with a fault, else 0; no token in the output."""
    setup = installation.setup
    environ = {
        "LEGATO_STORE": setup.settings.store,
        "LEGATO_TOKENS_FILE": str(setup.settings.tokens_file),
        "LEGATO_ENDPOINT": setup.otlp_url,
        "LEGATO_READ_URL": setup.read_url,
        "LEGATO_TOKEN": setup.token,
        "LEGATO_OTLP_GRPC_PORT": str(setup.settings.otlp_grpc_port),
        "LEGATO_READ_PASSWORD": setup.read_token,
    }
    text, as_json = legato("doctor", environ=environ), legato("doctor", "--json", environ=environ)
    assert (text.returncode, as_json.returncode) == (0, 0), text.stdout
    assert "0 faults, 0 warnings, 17 checks" in text.stdout
    assert [each["check"] for each in json.loads(as_json.stdout)] == list(installation.findings())
    wrong = legato("doctor", environ={**environ, "LEGATO_TOKEN": "wrong-token"})
    assert (
        wrong.returncode == 1 and "✗ fault   write token: LEGATO_TOKEN may not" in wrong.stdout and "→ `legato token list`" in wrong.stdout
    )
    for secret in (setup.token, setup.read_token, "wrong-token"):
        assert secret not in text.stdout + as_json.stdout + wrong.stdout
