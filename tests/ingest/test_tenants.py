"""Tenants at both endpoints: no tenant writes as another or reads the rows of another, and a request without a token is refused."""

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
from helpers.servers.reading import read_app, stream
from helpers.servers.serving import served
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.cli.client import Reader
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import LegatoError
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.committer import Committer

PROTOBUF = {"content-type": "application/x-protobuf"}
TENANTS = ("shop", "bank")


@dataclass
class Endpoints:
    """The URLs of both endpoints, and a token for each tenant and permission."""

    otlp: str
    read: str
    token: dict[tuple[str, str], str]
    path: pathlib.Path

    def write(self, content: bytes, token: str | None, path: str = "/v1/traces") -> httpx.Response:
        """Send a body with a token, or without one."""
        headers = {**PROTOBUF, **({"authorization": f"Bearer {token}"} if token is not None else {})}
        return httpx.post(f"{self.otlp}{path}", content=content, headers=headers)

    def query(self, sql: str, tenant: str) -> str:
        """Return the result of a query with the token of a reader."""
        reply = httpx.post(self.read, content=sql, headers={"authorization": f"Bearer {self.token[tenant, READ]}"})
        assert reply.status_code == 200, reply.text
        return reply.text.strip()


@pytest.fixture
def endpoints(store: Store, tmp_path: pathlib.Path) -> Iterator[Endpoints]:
    """Two tenants and an operator, at endpoints over the shared store."""
    path = tmp_path / "tokens.toml"
    made = {(tenant, may): tokens.add(path, f"{tenant}-{may}", tenant, may) for tenant in TENANTS for may in (READ, WRITE)}
    made[ALL_TENANTS, READ] = tokens.add(path, "operator", ALL_TENANTS, READ)
    settings = load(tokens_file=path, read_password="")
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with ExitStack() as stack:
        otlp = stack.enter_context(served(otlp_endpoint.create_app(settings, committer, metrics, lambda: True)))
        reads = stack.enter_context(served(read_app(settings, store, metrics)))
        yield Endpoints(otlp, reads, made, path)
    committer.close()


@pytest.fixture
def filled(endpoints: Endpoints) -> Endpoints:
    """Two streams and one sample of the shop, three and two of the bank, with the same trace ids, response ids and names."""
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
        assert endpoints.write(body.SerializeToString(), endpoints.token[tenant, WRITE]).status_code == 200
        points = metrics_request({"service.name": f"{tenant}-node"})
        for at in range(count - 1):
            gauge(points, "m", 1.0, time.time_ns() + at)
        assert endpoints.write(points.SerializeToString(), endpoints.token[tenant, WRITE], "/v1/metrics").status_code == 200
    return endpoints


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics"])
def test_a_request_that_may_not_write_is_refused(endpoints: Endpoints, path: str) -> None:
    """Without a token, or with a wrong one or a reader's, the reply is a 401 in OTLP's form for any body, and does not quote the token."""
    for token in (None, "wrong-token", endpoints.token["shop", READ], endpoints.token["shop", WRITE] + "x"):
        reply = endpoints.write(b"\xff", token, path)
        assert reply.status_code == 401 and reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.headers["content-type"] == PROTOBUF["content-type"]
        assert not token or token.encode() not in reply.content
    basic = base64.b64encode(f"any:{endpoints.token['shop', WRITE]}".encode()).decode()
    assert httpx.post(f"{endpoints.otlp}{path}", headers={**PROTOBUF, "authorization": f"Basic {basic}"}).status_code == 200
    assert endpoints.query("SELECT count() FROM stream_revs", ALL_TENANTS) == "0"


def test_the_tenant_is_that_of_the_token(endpoints: Endpoints) -> None:
    """Another tenant in attributes of resource, scope and span, in the URL or in headers changes nothing."""
    claim = {"tenant": "bank", "legato.tenant": "bank"}
    body = request({"service.name": "s", **claim}, {"legato.emitter": "legato-python/0.1.0", **claim})
    native_span(body, claim)
    reply = httpx.post(
        f"{endpoints.otlp}/v1/traces?tenant=bank",
        content=body.SerializeToString(),
        headers={**PROTOBUF, "authorization": f"Bearer {endpoints.token['shop', WRITE]}", "x-tenant": "bank", "x-scope-orgid": "bank"},
    )
    assert reply.status_code == 200
    assert endpoints.query("SELECT DISTINCT tenant FROM stream_revs", ALL_TENANTS) == "shop"


def test_a_rejection_belongs_to_its_tenant(endpoints: Endpoints) -> None:
    """A bad span of the shop is visible to the shop and to no other tenant."""
    body = request()
    native_span(body, {"legato.stream.timeline": b"\xff"})
    assert endpoints.write(body.SerializeToString(), endpoints.token["shop", WRITE]).status_code == 200
    assert [endpoints.query("SELECT count() FROM rejected", reader) for reader in ("shop", "bank", ALL_TENANTS)] == ["1", "0", "1"]


def test_rows_of_two_tenants_with_the_same_ids_are_separate(filled: Endpoints) -> None:
    """The same trace, span and response ids are one stream of each tenant."""
    assert filled.query("SELECT tenant, count() FROM streams GROUP BY tenant ORDER BY tenant", ALL_TENANTS) == "bank\t3\nshop\t2"


# Queries that must see the two (or three) rows of the tenant, and none of the other.
QUERIES = [
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
    "SELECT uniqExact(trace_id) FROM stream_revs WHERE 1",
    "SELECT count() FROM stream_revs WHERE tenant != '' OR 1",
    "SELECT count() FROM stream_revs GROUP BY ALL",
    "SELECT countIf(1) OVER () FROM stream_revs LIMIT 1",
    "SELECT length(groupArray(tenant)) FROM stream_revs",
    "SELECT count() FROM (SELECT min(start_time), max(start_time), span_id FROM stream_revs GROUP BY span_id)",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_a_reader_sees_the_rows_of_its_tenant_in_any_query(filled: Endpoints, sql: str) -> None:
    """The shop sees two rows and the bank three, in every form of query."""
    assert [filled.query(sql, tenant) for tenant in TENANTS] == ["2", "3"]


def test_no_table_shows_another_tenant(filled: Endpoints) -> None:
    """No name of the other tenant is in any column of any table, including those of the system."""
    assert [filled.query("SELECT DISTINCT tenant FROM streams", tenant) for tenant in TENANTS] == list(TENANTS)
    assert filled.query("SELECT count() FROM node_samples", "shop") == "1"
    tables = filled.query("SHOW TABLES", "shop").split()
    assert len(tables) >= 20
    for table in tables:
        assert "bank" not in filled.query(f"SELECT * FROM {table} FORMAT TSVRaw", "shop"), table
    assert filled.query("SELECT count() FROM attribution_runs", "shop") == "0"
    for table in ("system.parts", "system.disks"):
        assert filled.query(f"SELECT count() FROM {table}", "shop") == "0" != filled.query(f"SELECT count() FROM {table}", ALL_TENANTS)


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
        "SELECT count() FROM stream_revs PREWHERE toUInt8(tenant) = 1",
    ],
)
def test_the_filter_cannot_be_bypassed(filled: Endpoints, sql: str) -> None:
    """Other table functions, settings and system tables are refused, and the error contains no rows."""
    headers = {"authorization": f"Bearer {filled.token['shop', READ]}"}
    reply = httpx.post(filled.read, content=sql, headers=headers, params={"additional_table_filters": "{}", "readonly": "0"})
    assert reply.status_code in (400, 403) and "bank" not in reply.text, reply.text


def test_settings_in_the_url_do_not_lift_the_filter(filled: Endpoints) -> None:
    """They are ignored or refused."""
    headers = {"authorization": f"Bearer {filled.token['shop', READ]}"}
    for more in ({"additional_table_filters": "{}"}, {"readonly": "0"}, {"user": "x", "password": filled.token[ALL_TENANTS, READ]}):
        reply = httpx.post(filled.read, content="SELECT count() FROM streams", headers=headers, params=more)
        assert (reply.status_code, reply.text) == (200, "2\n") or reply.status_code == 403


def test_every_client_can_send_a_token(filled: Endpoints) -> None:
    """As a bearer token, as the password of Basic, in ClickHouse's headers, by clickhouse-connect and by the CLI."""
    token = filled.token["bank", READ]
    basic = base64.b64encode(f"any:{token}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {token}"},
        {"authorization": f"Basic {basic}"},
        {"x-clickhouse-user": "grafana", "x-clickhouse-key": token},
    ):
        assert httpx.post(filled.read, content="SELECT count() FROM streams", headers=headers).text == "3\n"
    port = int(filled.read.rpartition(":")[2])
    with clickhouse_connect.get_client(host="127.0.0.1", port=port, username="grafana", password=token) as client:
        assert client.query("SELECT count() FROM streams").result_rows == [(3,)]
    assert Reader(filled.read, "any", token).rows("SELECT count() AS n FROM streams") == [{"n": 3}]


def test_a_request_that_may_not_read_is_refused(filled: Endpoints) -> None:
    """Without a token, or with a wrong one, a writer's or one in the URL: 403 with ClickHouse's code, which does not quote the token."""
    write = filled.token["shop", WRITE]
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Bearer {write}"}, {"x-clickhouse-key": write}):
        reply = httpx.post(filled.read, content="SELECT 1", headers=headers)
        assert reply.status_code == 403 and reply.headers["x-clickhouse-exception-code"] == "516" and write not in reply.text
    assert httpx.get(f"{filled.read}/?query=SELECT+1&password={filled.token['shop', READ]}").status_code == 403
    assert httpx.get(f"{filled.read}/ping").status_code == 200
    with pytest.raises(LegatoError, match="LEGATO_READ_PASSWORD"):
        Reader(filled.read).rows("SELECT 1")


def test_the_metrics_of_the_server_need_a_token_for_all_tenants(filled: Endpoints) -> None:
    """They contain the services of all tenants. A token of one tenant is refused; health checks need no token."""
    for token, status in ((None, 401), (filled.token["shop", READ], 401), (filled.token[ALL_TENANTS, READ], 200)):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        reply = httpx.get(f"{filled.otlp}/metrics", headers=headers)
        assert reply.status_code == status
        assert not any(secret in reply.text for secret in filled.token.values())
    assert [httpx.get(f"{filled.otlp}/{path}").status_code for path in ("healthz", "readyz")] == [200, 200]


def test_handles_are_never_shared_between_tenants(filled: Endpoints, store: Store) -> None:
    """With queries of many tenants in turn, including more tenants than handles are kept."""
    for _ in range(3):
        for tenant in (*TENANTS, *(f"t{number}" for number in range(20))):
            expected = {"shop": b"2\n", "bank": b"3\n"}.get(tenant, b"0\n")
            assert store.query_bytes("SELECT count() FROM streams", tenant=tenant) == expected
    hostile = ("", "'", "\\", "shop' OR '1'='1", "shop\\' OR 1 --", "sh\x00op")
    assert [store.query_bytes("SELECT count() FROM streams", tenant=name) for name in hostile] == [b"0\n"] * len(hostile)


def test_a_table_that_is_created_later_is_filtered(filled: Endpoints, store: Store) -> None:
    """Handles that were opened before a table existed are not used to read it. Readers of one tenant have it when its view is made."""
    assert filled.query("SELECT 1", "shop") == "1"
    store.command("CREATE TABLE later (tenant String, x UInt8) ENGINE = MergeTree ORDER BY x")
    try:
        store.command("INSERT INTO later VALUES ('shop', 1), ('bank', 2)")
        headers = {"authorization": f"Bearer {filled.token['shop', READ]}"}
        for name in ("later", "default.later", "default_tenants.later"):
            reply = httpx.post(filled.read, content=f"SELECT * FROM {name}", headers=headers)
            assert reply.status_code in (403, 404), reply.text
        store.make_tenant_views()
        assert filled.query("SELECT x FROM later", "shop") == "1"
        # The name of a table after IN reads the table, too.
        for condition in ("('bank', 2) IN later", "('bank', 2) IN default.later", "('bank', 2) GLOBAL IN later"):
            assert filled.query(f"SELECT {condition}", "shop") == "0" != filled.query(f"SELECT {condition}", "bank")
    finally:
        store.command("DROP TABLE later")
        store.command("DROP TABLE IF EXISTS default_tenants.later")


def test_quotas_of_a_tenant_are_answered_with_429(store: Store, tmp_path: pathlib.Path) -> None:
    """Rate and cardinality: 429 with Retry-After for this tenant, 200 for the other; no row of a refused request is stored."""
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
