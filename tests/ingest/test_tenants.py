"""Tenants at every door: nobody writes as another, nobody reads another's rows, and who gives no token is nobody."""

from __future__ import annotations

import base64
import pathlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import clickhouse_connect
import httpx
import pytest

from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import native_span, request
from helpers.servers.reading import stream
from helpers.servers.serving import served
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.cli.client import Reader
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import LegatoError
from legato_ingest.metrics import Metrics
from legato_ingest.query import app as read_endpoint
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.committer import Committer

PROTOBUF = {"content-type": "application/x-protobuf"}
TENANTS = ("shop", "bank")


@dataclass
class Doors:
    """Both doors, and a token for each tenant and purpose."""

    otlp: str
    read: str
    token: dict[tuple[str, str], str]
    path: pathlib.Path

    def write(self, content: bytes, token: str | None, path: str = "/v1/traces") -> httpx.Response:
        headers = {**PROTOBUF, **({"authorization": f"Bearer {token}"} if token is not None else {})}
        return httpx.post(f"{self.otlp}{path}", content=content, headers=headers)

    def ask(self, sql: str, tenant: str) -> str:
        reply = httpx.post(self.read, content=sql, headers={"authorization": f"Bearer {self.token[tenant, READ]}"})
        assert reply.status_code == 200, reply.text
        return reply.text.strip()


@pytest.fixture
def doors(store: Store, tmp_path: pathlib.Path) -> Iterator[Doors]:
    """Two tenants and an operator, doors over the shared store."""
    path = tmp_path / "tokens.toml"
    made = {(tenant, may): tokens.add(path, f"{tenant}-{may}", tenant, may) for tenant in TENANTS for may in (READ, WRITE)}
    made[ALL_TENANTS, READ] = tokens.add(path, "operator", ALL_TENANTS, READ)
    settings = load(tokens_file=path, read_password="")
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with ExitStack() as stack:
        otlp = stack.enter_context(served(otlp_endpoint.create_app(settings, committer, metrics, lambda: True)))
        reads = stack.enter_context(served(read_endpoint.create_app(settings, store, metrics)))
        yield Doors(otlp, reads, made, path)
    committer.close()


@pytest.fixture
def filled(doors: Doors) -> Doors:
    """Two streams and a sample of the shop, three and two of the bank, under the same trace ids, response ids and names."""
    ids = [(bytes([number] * 16), bytes([number] * 8)) for number in (1, 2, 3)]
    for count, tenant in ((2, "shop"), (3, "bank")):
        body = request({"service.name": "same", "service.version": tenant})
        for number, (trace, span) in enumerate(ids[:count]):
            made = stream((20.0, 500.0))
            native_span(
                body,
                {**made["attributes"], "gen_ai.response.id": f"r{number}"},
                trace_id=trace,
                span_id=span,
                duration_ns=made["duration_ns"],
                start_ns=time.time_ns() // 10**9 * 10**9 - 60 * 10**9,
            )
        assert doors.write(body.SerializeToString(), doors.token[tenant, WRITE]).status_code == 200
        points = metrics_request({"service.name": f"{tenant}-node"})
        for at in range(count - 1):
            gauge(points, "m", 1.0, time.time_ns() + at)
        assert doors.write(points.SerializeToString(), doors.token[tenant, WRITE], "/v1/metrics").status_code == 200
    return doors


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics"])
def test_who_may_not_write_is_told_so_and_nothing_is_kept(doors: Doors, path: str) -> None:
    """No token, a wrong one, a reader's: 401 in OTLP's own form with WWW-Authenticate, whatever the body; the token is in no answer."""
    for token in (None, "wrong-token", doors.token["shop", READ], doors.token["shop", WRITE] + "x"):
        reply = doors.write(b"\xff", token, path)
        assert reply.status_code == 401 and reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.headers["content-type"] == PROTOBUF["content-type"]
        assert not token or token.encode() not in reply.content
    basic = base64.b64encode(f"any:{doors.token['shop', WRITE]}".encode()).decode()
    assert httpx.post(f"{doors.otlp}{path}", headers={**PROTOBUF, "authorization": f"Basic {basic}"}).status_code == 200
    assert doors.ask("SELECT count() FROM stream_revs", ALL_TENANTS) == "0"


def test_the_tenant_is_the_tokens_whatever_the_payload_says(doors: Doors) -> None:
    """Attributes that name another tenant, on resource, scope and span, change nothing."""
    claim = {"tenant": "bank", "legato.tenant": "bank"}
    body = request({"service.name": "s", **claim}, {"legato.emitter": "legato-python/0.1.0", **claim})
    native_span(body, claim)
    reply = httpx.post(
        f"{doors.otlp}/v1/traces?tenant=bank",
        content=body.SerializeToString(),
        headers={**PROTOBUF, "authorization": f"Bearer {doors.token['shop', WRITE]}", "x-tenant": "bank", "x-scope-orgid": "bank"},
    )
    assert reply.status_code == 200
    assert doors.ask("SELECT DISTINCT tenant FROM stream_revs", ALL_TENANTS) == "shop"


def test_what_is_refused_is_its_tenants(doors: Doors) -> None:
    """A bad span of the shop's is told to the shop and to nobody else."""
    body = request()
    native_span(body, {"legato.stream.timeline": b"\xff"})
    assert doors.write(body.SerializeToString(), doors.token["shop", WRITE]).status_code == 200
    assert [doors.ask("SELECT count() FROM rejected", reader) for reader in ("shop", "bank", ALL_TENANTS)] == ["1", "0", "1"]


def test_one_tenants_rows_do_not_touch_anothers_with_the_same_ids(filled: Doors) -> None:
    """The same trace, span and response ids are a stream of each; a retry of one's is a duplicate of that one alone."""
    assert filled.ask("SELECT tenant, count() FROM streams GROUP BY tenant ORDER BY tenant", ALL_TENANTS) == "bank\t3\nshop\t2"


# Ways of asking for rows: each must see the tenant's own two (or three), and nothing of the other's.
ASKED = [
    "SELECT count() FROM stream_revs",
    "SELECT count() FROM streams",
    "SELECT count() FROM default.stream_revs",
    "SELECT count(DISTINCT trace_id) FROM stream_revs FINAL",
    "SELECT count() FROM stream_revs AS a INNER JOIN streams AS b USING (trace_id, span_id)",
    "SELECT (SELECT count() FROM stream_revs)",
    "WITH x AS (SELECT * FROM streams) SELECT count() FROM x",
    "SELECT count() FROM view(SELECT * FROM stream_revs)",
    "SELECT sum(n) FROM (SELECT 1 AS n FROM stream_revs UNION ALL SELECT 0 AS n FROM streams)",
    "SELECT count() FROM numbers(10) WHERE number IN (SELECT toUInt64(reinterpretAsUInt8(substring(span_id, 1, 1))) FROM stream_revs)",
    "SELECT uniqExact(trace_id) FROM stream_revs PREWHERE 1",
    "SELECT count() FROM stream_revs WHERE tenant != '' OR 1",
    "SELECT count() FROM stream_revs GROUP BY ALL",
    "SELECT countIf(1) OVER () FROM stream_revs LIMIT 1",
    "SELECT length(groupArray(tenant)) FROM stream_revs",
    "SELECT count() FROM (SELECT min(start_time), max(start_time), span_id FROM stream_revs GROUP BY span_id)",
]


@pytest.mark.parametrize("sql", ASKED)
def test_a_reader_sees_its_tenants_rows_by_any_question(filled: Doors, sql: str) -> None:
    """Two of the shop, three of the bank, by whatever question; the operator sees all five rows."""
    assert [filled.ask(sql, tenant) for tenant in TENANTS] == ["2", "3"]


def test_a_readers_own_tenant_is_all_there_is(filled: Doors) -> None:
    """No name of the other's appears in any column of any table, the system's included."""
    assert [filled.ask("SELECT DISTINCT tenant FROM streams", tenant) for tenant in TENANTS] == list(TENANTS)
    assert filled.ask("SELECT count() FROM node_samples", "shop") == "1"
    tables = filled.ask("SHOW TABLES", "shop").split()
    assert len(tables) >= 20
    for table in tables:
        assert "bank" not in filled.ask(f"SELECT * FROM {table} FORMAT TSVRaw", "shop"), table
    assert filled.ask("SELECT count() FROM attribution_runs", "shop") == "0"
    assert filled.ask("SELECT count() FROM system.parts", "shop") == "0" != filled.ask("SELECT count() FROM system.parts", ALL_TENANTS)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count() FROM merge('default', 'stream')",
        "SELECT count() FROM stream_revs SETTINGS additional_table_filters = {}",
        "SET additional_table_filters = {}",
        "SELECT * FROM remote('127.0.0.1', default.stream_revs)",
        "SELECT * FROM system.processes",
        "SELECT * FROM system.query_log",
        "SELECT * FROM mergeTreeIndex(default, stream_revs)",
        "SELECT * FROM cluster('default', default.stream_revs)",
        "SELECT getSetting('additional_table_filters')",
        "SELECT * FROM mergeTreeProjection(default, stream_revs, x)",
        "SELECT * FROM loop(default.stream_revs)",
        "SELECT joinGet('stream_revs', 'x', 1)",
    ],
)
def test_ways_around_the_filter_are_closed(filled: Doors, sql: str) -> None:
    """By another function, a setting or a table of the system's: refused, and no row in the refusal."""
    headers = {"authorization": f"Bearer {filled.token['shop', READ]}"}
    reply = httpx.post(filled.read, content=sql, headers=headers, params={"additional_table_filters": "{}", "readonly": "0"})
    assert reply.status_code in (400, 403) and "bank" not in reply.text, reply.text


def test_settings_in_the_url_lift_nothing(filled: Doors) -> None:
    """Whatever a client puts there is ignored."""
    headers = {"authorization": f"Bearer {filled.token['shop', READ]}"}
    for more in ({"additional_table_filters": "{}"}, {"readonly": "0"}, {"user": "x", "password": filled.token[ALL_TENANTS, READ]}):
        reply = httpx.post(filled.read, content="SELECT count() FROM streams", headers=headers, params=more)
        assert (reply.status_code, reply.text) == (200, "2\n") or reply.status_code == 403


def test_every_client_can_give_a_token(filled: Doors) -> None:
    """As Bearer, as Basic's password, in ClickHouse's headers, by clickhouse-connect, and by the CLI's reader."""
    token = filled.token["bank", READ]
    basic = base64.b64encode(f"anybody:{token}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {token}"},
        {"authorization": f"Basic {basic}"},
        {"x-clickhouse-user": "grafana", "x-clickhouse-key": token},
    ):
        assert httpx.post(filled.read, content="SELECT count() FROM streams", headers=headers).text == "3\n"
    port = int(filled.read.rpartition(":")[2])
    with clickhouse_connect.get_client(host="127.0.0.1", port=port, username="grafana", password=token) as client:
        assert client.query("SELECT count() FROM streams").result_rows == [(3,)]
    assert Reader(filled.read, "anybody", token).rows("SELECT count() AS n FROM streams") == [{"n": 3}]


def test_who_may_not_read_is_told_so(filled: Doors) -> None:
    """No token, a wrong one, a writer's, one in the URL: 403 with ClickHouse's code, and the token is in no answer."""
    write = filled.token["shop", WRITE]
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Bearer {write}"}, {"x-clickhouse-key": write}):
        reply = httpx.post(filled.read, content="SELECT 1", headers=headers)
        assert reply.status_code == 403 and reply.headers["x-clickhouse-exception-code"] == "516" and write not in reply.text
    assert httpx.get(f"{filled.read}/?query=SELECT+1&password={filled.token['shop', READ]}").status_code == 403
    assert httpx.get(f"{filled.read}/ping").status_code == 200
    with pytest.raises(LegatoError, match="LEGATO_READ_PASSWORD"):
        Reader(filled.read).rows("SELECT 1")


def test_the_servers_own_metrics_are_an_operators(filled: Doors) -> None:
    """They name every tenant's services: a tenant's reader is refused; health needs no token."""
    for token, status in ((None, 401), (filled.token["shop", READ], 401), (filled.token[ALL_TENANTS, READ], 200)):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        reply = httpx.get(f"{filled.otlp}/metrics", headers=headers)
        assert reply.status_code == status
        assert not any(secret in reply.text for secret in filled.token.values())
    assert [httpx.get(f"{filled.otlp}/{path}").status_code for path in ("healthz", "readyz")] == [200, 200]


def test_handles_of_one_tenant_are_never_anothers(filled: Doors, store: Store) -> None:
    """Asked in turn and many times over, also after more tenants than handles are kept."""
    for _ in range(3):
        for tenant in (*TENANTS, *(f"t{number}" for number in range(20))):
            expected = {"shop": b"2\n", "bank": b"3\n"}.get(tenant, b"0\n")
            assert store.query_bytes("SELECT count() FROM streams", tenant=tenant) == expected
    hostile = ("", "'", "\\", "shop' OR '1'='1", "shop\\' OR 1 --", "sh\x00op")
    assert [store.query_bytes("SELECT count() FROM streams", tenant=name) for name in hostile] == [b"0\n"] * len(hostile)


def test_a_table_that_comes_later_is_filtered_too(filled: Doors, store: Store) -> None:
    """Handles that were opened before a table existed are not used for it."""
    assert filled.ask("SELECT 1", "shop") == "1"
    store.command("CREATE TABLE later (tenant String, x UInt8) ENGINE = MergeTree ORDER BY x")
    try:
        store.command("INSERT INTO later VALUES ('shop', 1), ('bank', 2)")
        assert filled.ask("SELECT x FROM later", "shop") == "1"
        # A table's name after IN reads it, too.
        for asked in ("('bank', 2) IN later", "('bank', 2) IN default.later", "('bank', 2) GLOBAL IN later"):
            assert filled.ask(f"SELECT {asked}", "shop") == "0" != filled.ask(f"SELECT {asked}", "bank")
    finally:
        store.command("DROP TABLE later")


def test_limits_of_a_tenant_are_answered_with_429(store: Store, tmp_path: pathlib.Path) -> None:
    """Rate and names: 429 with Retry-After for this tenant, 200 for the other, and nothing of the refused request is kept."""
    path = tmp_path / "tokens.toml"
    made = {tenant: tokens.add(path, tenant, tenant, WRITE) for tenant in TENANTS}
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    settings = load(tokens_file=path, tenant_cardinality_max=2, tenant_bytes_per_s=2000)
    with served(otlp_endpoint.create_app(settings, committer, metrics, lambda: True)) as url:

        def send(tenant: str, *models: str) -> httpx.Response:
            body = request()
            for model in models:
                native_span(body, {"gen_ai.request.model": model})
            return httpx.post(
                f"{url}/v1/traces", content=body.SerializeToString(), headers={**PROTOBUF, "authorization": f"Bearer {made[tenant]}"}
            )

        assert send("shop", "a", "b").status_code == 200
        refused = send("shop", "c")
        assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 60
        assert b"combinations of labels" in refused.content
        assert send("bank", "c").status_code == 200
        replies = [send("bank", *["c"] * 10) for _ in range(8)]
        late = [reply for reply in replies if reply.status_code == 429]
        assert late and all(int(reply.headers["retry-after"]) >= 1 and b"bytes per second" in reply.content for reply in late)
        assert send("shop", "a").status_code == 200
    committer.close()
    kept = store.select("SELECT tenant, count() FROM stream_revs GROUP BY tenant ORDER BY tenant")
    assert [(str(tenant), int(count)) for tenant, count in kept] == [("bank", 1 + 10 * (8 - len(late))), ("shop", 3)]
