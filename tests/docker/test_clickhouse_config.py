"""deploy/clickhouse/server.xml: the server's own logs do not grow without limit, and the expressions are valid for ClickHouse."""

from __future__ import annotations

import pathlib
import re
import xml.etree.ElementTree as ElementTree

import chdb

from helpers.repo.repository import ROOT
from legato_ingest.storage import EmbeddedStore

CONFIG = ElementTree.parse(ROOT / "deploy" / "clickhouse" / "server.xml").getroot()
# The logs that a server of version 26 can keep (LIST_OF_ALL_SYSTEM_LOGS in its source), and latency_log of earlier versions.
LOGS = """query_log query_thread_log part_log background_schedule_pool_log trace_log crash_log text_log metric_log transposed_metric_log
    bucketed_metric_log latency_log error_log filesystem_cache_log filesystem_read_prefetches_log s3queue_log azure_queue_log
    asynchronous_metric_log opentelemetry_span_log query_views_log zookeeper_log session_log transactions_info_log processors_profile_log
    asynchronous_insert_log backup_log blob_storage_log query_metric_log dead_letter_queue zookeeper_connection_log
    aggregated_zookeeper_log iceberg_metadata_log delta_lake_metadata_log predicate_statistics_log""".split()


def test_the_documented_version_is_that_of_the_tests_and_of_compose() -> None:
    """docs/operating.md names the version that chDB embeds; the server in docker-compose.yml is of the same version."""
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    (documented,) = re.findall(r"tests run on (\d+\.\d+), the version that chDB embeds and that compose uses", page.replace("\n", " "))
    (image,) = re.findall(r"image: clickhouse/clickhouse-server:(\S+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert documented == image == ".".join(chdb.engine_version.split(".")[:2])


def test_every_log_is_removed_or_expires(tmp_path: pathlib.Path) -> None:
    """Within 90 days; the log of queries, which is the largest, within a week. No other section looks like a log."""
    sections = {each.tag: each for each in CONFIG if each.tag not in ("listen_host", "logger", "timezone")}
    assert set(sections) == set(LOGS)
    kept = {name: log for name, log in sections.items() if log.get("remove") != "remove"}
    assert "query_log" in kept
    store = EmbeddedStore(tmp_path / "store")
    try:
        for name, log in kept.items():
            (ttl,) = log
            expression, _, action = (ttl.text or "").rpartition(" ")
            assert ttl.tag == "ttl" and action == "DELETE"
            store.command(f"CREATE TABLE {name} (event_date Date) ENGINE = MergeTree ORDER BY event_date TTL {ttl.text}")
            ((days,),) = store.select(f"SELECT dateDiff('day', event_date, {expression}) FROM (SELECT today() AS event_date)")
            assert 1 <= days <= (7 if name == "query_log" else 90)
    finally:
        store.close()
