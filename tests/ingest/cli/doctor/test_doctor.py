"""`legato doctor` finds each fault that is seeded, says what to do, and finds nothing where all is well."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx
import pytest
from fastapi import FastAPI

from helpers.builders.batches import received_points, received_spans
from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import native_span, request
from helpers.servers import collector as collectors
from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.reading import stream
from helpers.servers.receiver import receiver
from helpers.servers.serving import legato, served
from helpers.servers.waiting import until
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.cli.doctor import data, endpoints
from legato_ingest.cli.doctor.findings import Check, Finding, Setup, examine
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.query import app as read_endpoint
from legato_ingest.settings import load
from legato_ingest.storage import Store, migrate
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.committer import Committer

HOUR_S = 3600
SCHEMA = pathlib.Path(__file__).resolve().parents[4] / "schema"


@dataclass
class Patient:
    """A set-up that is well, and its parts."""

    setup: Setup
    store: Store
    metrics: Metrics
    folder: pathlib.Path

    def findings(self, setup: Setup | None = None) -> dict[str, Finding]:
        """Every check's finding by its name."""
        made = replace(setup or self.setup, answers=set())
        return {finding.check: finding for finding in examine(made, (*endpoints.CHECKS, *data.CHECKS))}

    def faults(self, setup: Setup | None = None) -> set[str]:
        """The checks that found a fault; each says what to do, in words of one line."""
        found = self.findings(setup)
        assert all(each.todo and "\n" not in each.found + each.todo for each in found.values() if each.state in ("fault", "warning"))
        return {name for name, each in found.items() if each.state == "fault"}


@pytest.fixture
def patient(store: Store, tmp_path: pathlib.Path) -> Iterator[Patient]:
    """Doors with tokens over the shared store, whose schema is current, on a disk with room."""
    path = tmp_path / "tokens.toml"
    write, everyone = tokens.add(path, "w", "shop", WRITE), tokens.add(path, "op", ALL_TENANTS, READ)
    settings = load(store=f"chdb://{tmp_path}/store", tokens_file=path, schema_dir=SCHEMA, read_password=everyone)
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    serving = load(tokens_file=path)
    with (
        served(otlp_endpoint.create_app(serving, committer, metrics, lambda: True)) as otlp,
        served(read_endpoint.create_app(serving, store, metrics)) as reads,
    ):
        yield Patient(Setup(settings, otlp, reads, "", write, everyone), store, metrics, tmp_path)
    committer.close()


def came(store: Store, count: int, age_min: float, vantage: str = "client", *, start_ahead_s: float = 0.0, engine_id: str = "") -> None:
    """So many streams that were received so long ago, and ended just before (or so long after)."""
    body, received_ns = request({"service.name": "shop"}), time.time_ns() - int(age_min * 60e9)
    made = stream()
    for _ in range(count):
        start_ns = received_ns - made["duration_ns"] + int(start_ahead_s * 1e9)
        values = {**made["attributes"], "legato.stream.vantage": vantage, **({"legato.engine.id": engine_id} if engine_id else {})}
        native_span(body, values, start_ns=start_ns, duration_ns=made["duration_ns"])
    rows = received_spans(body, tenant="shop", now_ns=received_ns, limits=Limits())
    assert rows.rejected.num_rows == 0
    store.insert("stream_revs", rows.revs)


def test_a_set_up_that_is_well_has_no_fault_and_no_warning(patient: Patient) -> None:
    """Also one without anything in its store yet."""
    for _ in range(2):
        states = {name: finding.state for name, finding in patient.findings().items()}
        assert set(states.values()) <= {"well", "skipped"}, patient.findings()
        assert states["OTLP endpoint"] == states["read endpoint"] == states["write token"] == states["schema"] == states["disk"] == "well"
        came(patient.store, 30, 1.0)
        came(patient.store, 30, 30.0)


def test_nobody_at_the_ports(patient: Patient) -> None:
    """Neither door answers: both are said, and what needs them is not failed over again."""
    nobody = f"http://127.0.0.1:{free_port()}"
    gone = replace(patient.setup, otlp_url=nobody, read_url=nobody)
    assert patient.faults(gone) == {"OTLP endpoint", "read endpoint"}
    assert "start `legato serve`" in patient.findings(gone)["OTLP endpoint"].todo


def test_another_program_on_the_port(patient: Patient) -> None:
    """It answers, but not as Legato."""
    other = FastAPI()
    with served(other) as url:
        assert patient.faults(replace(patient.setup, otlp_url=url, read_url=url)) == {"OTLP endpoint", "read endpoint"}


def test_a_store_that_does_not_answer(patient: Patient) -> None:
    """The door is there, and says that it is not ready."""
    committer = Committer(patient.store, patient.metrics, queue_bytes_max=2**20, chunks_max=10**5)
    with served(otlp_endpoint.create_app(load(), committer, patient.metrics, lambda: False)) as url:
        found = patient.findings(replace(patient.setup, otlp_url=url))["OTLP endpoint"]
    committer.close()
    assert found.state == "fault" and "its store does not" in found.found


@pytest.mark.parametrize(("token", "said"), [("", "none is set"), ("wrong", "may not write here")])
def test_a_token_that_is_missing_or_wrong(patient: Patient, token: str, said: str) -> None:
    """For writing, in words that hold no token."""
    found = patient.findings(replace(patient.setup, token=token))["write token"]
    assert found.state == "fault" and said in found.found and "legato token" in found.todo
    readers = patient.findings(replace(patient.setup, read_token=token))["read endpoint"]
    assert readers.state == "fault" and "LEGATO_READ_PASSWORD" in readers.todo
    assert not token or token not in readers.found + found.found


def test_a_file_of_tokens_that_broke(patient: Patient) -> None:
    """Said before the next start fails on it; one that others may write, and one without writers, are warnings."""
    path = patient.setup.settings.tokens_file
    assert path is not None
    path.chmod(0o666)
    assert patient.findings()["tokens' file"].state == "warning"
    path.chmod(0o600)
    tokens.remove(path, "w")
    assert "may write" in patient.findings()["tokens' file"].found
    path.write_text("[[token")
    assert "tokens' file" in patient.faults()


def test_a_certificate_that_expired(patient: Patient) -> None:
    """Or that will soon."""
    for days, state in ((-1, "fault"), (5, "warning"), (80, "well")):
        folder = patient.folder / str(days)
        folder.mkdir()
        certificate, key, _ = issued(folder, days)
        settings = load(**{**patient.setup.settings.model_dump(), "tls_cert_file": certificate, "tls_key_file": key})
        assert patient.findings(replace(patient.setup, settings=settings))["certificate"].state == state


def test_a_schema_behind_ahead_of_or_other_than_the_program(patient: Patient) -> None:
    """Each said as what it is, with the numbers."""
    folder = patient.folder / "schema"
    shutil.copytree(SCHEMA, folder)
    settings = load(**{**patient.setup.settings.model_dump(), "schema_dir": folder})
    setup, newest = replace(patient.setup, settings=settings), max(migrate.applied(patient.store))
    (folder / f"{newest + 1:04}_next.sql").write_text("SELECT 1")
    assert f"from {newest + 1:04}" in patient.findings(setup)["schema"].found
    (folder / f"{newest + 1:04}_next.sql").unlink()
    last = next(folder.glob(f"{newest:04}_*.sql"))
    text = last.read_text()
    last.write_text(f"{text} ")
    assert "not the one that was applied" in patient.findings(setup)["schema"].found
    last.unlink()
    assert f"this version has {newest - 1}" in patient.findings(setup)["schema"].found
    assert patient.faults(setup) == {"schema"}


def test_a_clock_an_hour_off(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's, against the store's."""
    real = time.time
    monkeypatch.setattr("legato_ingest.cli.doctor.endpoints.time.time", lambda: real() - HOUR_S)
    found = patient.findings()["clock"]
    assert found.state == "fault" and "differ by 3,600.0 s" in found.found


def test_a_disk_that_is_nearly_full(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault when it is all but full, a warning before."""
    usage = shutil.disk_usage("/")
    for free, state in ((2**20, "fault"), (2**29, "warning")):
        monkeypatch.setattr("legato_ingest.cli.doctor.endpoints.shutil.disk_usage", lambda _, free=free: usage._replace(free=free))
        assert patient.findings()["disk"].state == state


def test_a_collector_that_is_away_behind_or_has_dropped(patient: Patient) -> None:
    """A real one: nobody there, no Collector's page, a backlog over half of its queue, a request that was refused for good."""
    if why := collectors.missing():
        pytest.skip(why)
    gone = replace(patient.setup, collector_metrics_url=f"http://127.0.0.1:{free_port()}/metrics")
    assert patient.faults(gone) == {"Collector"}
    assert patient.faults(replace(patient.setup, collector_metrics_url=f"{patient.setup.otlp_url}/metrics")) == {"Collector"}
    with receiver() as behind:
        settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_QUEUE_BYTES": "20000"}
        with collectors.run(patient.folder / "c", "gateway.yaml", **settings) as running:
            setup = replace(patient.setup, collector_metrics_url=running.metrics_url)
            assert patient.findings(setup)["Collector"].state == "well"
            behind.status = 503
            while posted(running.http) == 200:
                pass
            assert "fullest queue" in patient.findings(setup)["Collector"].found and patient.faults(setup) == {"Collector"}
            behind.status = 401
            until(lambda: "dropped" in patient.findings(setup)["Collector"].found)
            assert patient.faults(setup) == {"Collector"}


def posted(url: str) -> int:
    """The status of one stream that is sent there."""
    body = request()
    native_span(body)
    return httpx.post(f"{url}/v1/traces", content=body.SerializeToString(), headers={"content-type": "application/x-protobuf"}).status_code


def test_a_vantage_that_stopped(patient: Patient) -> None:
    """The server's, while clients go on; when nothing comes at all it may be that there is no traffic."""
    came(patient.store, 40, 30.0, "server")
    came(patient.store, 40, 30.0)
    assert patient.findings()["vantages"].state == "warning"
    came(patient.store, 5, 1.0)
    found = patient.findings()["vantages"]
    assert found.state == "fault" and "server of shop (40" in found.found and "client" not in found.found


def test_an_engine_without_steps(patient: Patient) -> None:
    """It serves streams, and tells of no step."""
    came(patient.store, 10, 5.0, "server", engine_id="10.0.0.1:8000")
    found = patient.findings()["engine steps"]
    assert found.state == "fault" and "10.0.0.1:8000 (10 streams)" in found.found and "legato-gpu-agent" in found.todo


def agent_told(store: Store, engine_id: str, up: float = 1.0) -> None:
    """An agent read this engine's page just now, or tried to."""
    body = metrics_request({"legato.engine.id": engine_id})
    gauge(body, "legato.engine.up", up, time.time_ns())
    store.insert("node_samples", received_points(body, tenant="", now_ns=time.time_ns(), limits=Limits()).samples)


def test_an_engine_whose_page_alone_is_read(patient: Patient) -> None:
    """No fault: pages name few causes, and some engines tell no more. One whose page cannot be read is as one that is not."""
    came(patient.store, 10, 5.0, "server", engine_id="10.0.0.1:8000")
    agent_told(patient.store, "10.0.0.1:8000", up=0.0)
    assert patient.findings()["engine steps"].state == "fault"
    agent_told(patient.store, "10.0.0.1:8000/1")
    found = patient.findings()["engine steps"]
    assert found.state == "warning" and "only scraped metrics" in found.found and "10.0.0.1:8000 (10 streams)" in found.found
    came(patient.store, 10, 5.0, "server", engine_id="pool/1")
    found = patient.findings()["engine steps"]
    assert found.state == "fault" and "pool/1 (10 streams)" in found.found and "without streams" not in found.found
    agent_told(patient.store, "pool/1")
    assert patient.findings()["engine steps"].state == "warning"


def test_an_engine_that_goes_by_two_names(patient: Patient) -> None:
    """Its server is called by the address that clients use, and the agent reads it on loopback."""
    came(patient.store, 10, 5.0, "server", engine_id="10.0.0.1:8000")
    agent_told(patient.store, "127.0.0.1:8000")
    found = patient.findings()["engine steps"]
    assert found.state == "fault" and "without streams: 127.0.0.1:8000" in found.found and "LEGATO_ENGINE_ID" in found.todo


@pytest.mark.parametrize(("ahead_s", "said"), [(HOUR_S, "end after they are received"), (-2 * HOUR_S, "long before they are received")])
def test_an_emitter_whose_clock_is_off(patient: Patient, ahead_s: float, said: str) -> None:
    """An hour ahead, or behind."""
    came(patient.store, 10, 5.0, start_ahead_s=ahead_s)
    found = patient.findings()["emitters' clocks"]
    assert found.state == "fault" and said in found.found and "shop" in found.found


def test_spans_that_are_refused(patient: Patient) -> None:
    """A warning with the reason, by the door that refused them."""
    body = request()
    native_span(body, {"legato.stream.timeline": b"\xff"})
    setup = patient.setup
    assert (
        setup.post(f"{setup.otlp_url}/v1/traces", body.SerializeToString(), {"Content-Type": "application/x-protobuf"}).status_code == 200
    )
    found = patient.findings()["rejected"]
    assert found.state == "warning" and "1 timeline" in found.found


def test_work_that_falls_behind_or_fails(patient: Patient) -> None:
    """Ten minutes behind is a fault, an error since the start a warning."""
    patient.metrics.errors.labels("attribute", "StoreUnavailable").inc()
    assert patient.findings()["keeping up"].state == "warning"
    patient.metrics.rollup_lag_seconds.set(3600)
    found = patient.findings()["keeping up"]
    assert found.state == "fault" and "3,600 s behind" in found.found


def test_a_tenants_reader_is_told_what_it_may_not_see(patient: Patient) -> None:
    """Not a fault: some checks are an operator's."""
    path = patient.setup.settings.tokens_file
    assert path is not None
    own = tokens.add(path, "r", "shop", READ)
    until(lambda: patient.findings(replace(patient.setup, read_token=own))["read endpoint"].state == "well")
    found = patient.findings(replace(patient.setup, read_token=own))
    assert found["schema"].state == found["keeping up"].state == "skipped"


def test_a_check_that_fails_is_a_finding(patient: Patient) -> None:
    """And the others go on."""

    def broken(_: Setup) -> Finding:
        raise ZeroDivisionError

    found = list(examine(patient.setup, (Check("broken", broken), Check("OTLP endpoint", endpoints.otlp_endpoint))))
    assert [each.state for each in found] == ["fault", "well"]


def test_the_command(patient: Patient) -> None:
    """A page and JSON of the same findings; 0 where there is no fault, else 1; no token in what it prints."""
    setup = patient.setup
    environ = {
        "LEGATO_STORE": setup.settings.store,
        "LEGATO_TOKENS_FILE": str(setup.settings.tokens_file),
        "LEGATO_ENDPOINT": setup.otlp_url,
        "LEGATO_READ_URL": setup.read_url,
        "LEGATO_TOKEN": setup.token,
        "LEGATO_READ_PASSWORD": setup.read_token,
    }
    page, as_json = legato("doctor", environ=environ), legato("doctor", "--json", environ=environ)
    assert (page.returncode, as_json.returncode) == (0, 0), page.stdout
    assert "0 faults, 0 warnings, 14 checks" in page.stdout
    assert [each["check"] for each in json.loads(as_json.stdout)] == list(patient.findings())
    wrong = legato("doctor", environ={**environ, "LEGATO_TOKEN": "wrong-token"})
    assert wrong.returncode == 1 and "✗ write token" in wrong.stdout and "→ `legato token list`" in wrong.stdout
    for secret in (setup.token, setup.read_token, "wrong-token"):
        assert secret not in page.stdout + as_json.stdout + wrong.stdout
