"""Checks of the endpoints and of files: reachability, tokens, certificate, schema, clock, disk, and the Collector.

The first check of an endpoint records whether it answers; checks that need the endpoint are skipped if it does not. The only request to the
OTLP endpoint is empty and changes nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from legato_ingest.auth.tokens import READ, WRITE, load
from legato_ingest.cli.client import CredentialsError, ReadError
from legato_ingest.cli.doctor.certificate import certificate
from legato_ingest.cli.doctor.findings import Check, Finding, Setup, fault, skipped, warning, well
from legato_ingest.errors import LegatoError

__all__ = ["CHECKS", "samples_in"]

Sample = tuple[str, tuple[tuple[str, str], ...], float]

_PROTOBUF = {"Content-Type": "application/x-protobuf"}
_CLOCK_S_WARNED, _CLOCK_S_MAX = 2.0, 30.0
_FREE_SHARE_MIN, _FREE_BYTES_MIN = 0.1, 2**30
_BACKLOG_SHARE = 0.5
# The fullest first. An object storage has no size.
_DISKS = "SELECT path, free_space AS free, total_space AS total FROM system.disks WHERE NOT is_remote ORDER BY free / total"


def otlp_endpoint(setup: Setup) -> Finding:
    """Check that the OTLP endpoint answers, and the store behind it."""
    name, url = "OTLP endpoint", setup.otlp_url
    try:
        reply = setup.get(f"{url}/readyz")
    except httpx.TransportError as error:
        return fault(name, f"no answer at {url} ({_cause(error)})", "start `legato serve`, or set its URL: --otlp, LEGATO_ENDPOINT")
    if reply.status_code == 503:
        return fault(
            name, f"{url} answers, but its store does not", "see the log of `legato serve`: disk, memory, or the ClickHouse server"
        )
    if reply.status_code != 200 or reply.text.strip() != "ready":
        return fault(
            name,
            f"{url} answers (status {reply.status_code}), but not as Legato's OTLP endpoint",
            "another program has this port? --otlp sets the URL",
        )
    setup.answers.add(name)
    return well(name, f"{url} is ready")


def read_endpoint(setup: Setup) -> Finding:
    """Check that the read endpoint answers this reader."""
    name = "read endpoint"
    try:
        setup.reader.rows("SELECT 1 AS one")
    except ReadError as error:
        todo = (
            "a reader's token goes into LEGATO_READ_PASSWORD"
            if isinstance(error, CredentialsError)
            else "--url or LEGATO_READ_URL set its address"
        )
        return fault(name, str(error), todo)
    setup.answers.add(name)
    return well(name, f"{setup.read_url} answers")


def write_token(setup: Setup) -> Finding:
    """Check that an emitter's request is accepted."""
    name = "write token"
    reply = setup.post(f"{setup.otlp_url}/v1/traces", b"", _PROTOBUF)
    if reply.status_code == 401 and not setup.token:
        return fault(name, "a token is needed, and none is set", "`legato token add NAME --tenant TENANT --write`; LEGATO_TOKEN")
    if reply.status_code == 401:
        return fault(name, "LEGATO_TOKEN may not write here", "`legato token list` shows the tokens that may; add one")
    if reply.status_code != 200:
        return fault(name, f"an empty request got {reply.status_code}", "see the log of `legato serve`")
    return well(name, "an emitter's request is accepted" if setup.token else "no token is needed")


def tokens_file(setup: Setup) -> Finding:
    """Check that the tokens' file can be used, and that some token may write and some may read."""
    name, path = "tokens' file", setup.settings.tokens_file
    if path is None:
        return skipped(name, "LEGATO_TOKENS_FILE is not set: every request that reaches the endpoints is allowed")
    try:
        tokens = load(path)
    except LegatoError as error:
        return fault(name, str(error), "a running server keeps the tokens that it read before: repair the file before the next start")
    writers, readers = (sum(token.may == may for token in tokens) for may in (WRITE, READ))
    if path.stat().st_mode & 0o022:
        return warning(name, f"other users of the host may write {path}", f"chmod go-w {path}")
    if not writers or not readers:
        which = "write" if not writers else "read"
        return warning(name, f"no token in {path} may {which}", f"`legato token add NAME --tenant TENANT --{which}`")
    return well(name, f"{writers} may write, {readers} may read")


def schema(setup: Setup) -> Finding:
    """Check that the store's schema is the one of this version."""
    from legato_ingest.storage import migrate

    name = "schema"
    known = {int(row["number"]): row["sha256"] for row in setup.reader.rows("SELECT number, sha256 FROM schema_migrations FINAL")}
    if not known:
        return skipped(name, "this reader may not see it: use a token of all tenants")
    files = {file.number: file.sha256 for file in migrate.load(setup.settings.schema_dir)}
    if max(known) > max(files):
        return fault(
            name,
            f"the store has schema {max(known)}, this version has {max(files)}",
            "use the newer version: an older `legato serve` does not start",
        )
    if missing := sorted(set(files) - set(known)):
        return fault(
            name, f"the store lacks {len(missing)} files, from {missing[0]:04}", "`legato schema apply`, or restart `legato serve`"
        )
    if changed := [number for number in files if files[number] != known[number]]:
        return fault(name, f"file {changed[0]:04} is not the one that was applied", "restore the file: schema changes need a new file")
    return well(name, f"current, at {max(known)}")


def clock(setup: Setup) -> Finding:
    """Check the difference between this host's clock and the store's."""
    name = "clock"
    before = time.time()
    (row,) = setup.reader.rows("SELECT toUnixTimestamp64Milli(now64(3)) AS ms")
    apart_s = int(row["ms"]) / 1000 - (before + time.time()) / 2
    found = f"this host and the store differ by {abs(apart_s):,.1f} s" if abs(apart_s) >= 0.1 else "this host and the store agree"
    if abs(apart_s) > _CLOCK_S_MAX:
        return fault(
            name, found, "set both by NTP: otherwise streams have the wrong time, and engine steps are matched to the wrong streams"
        )
    return warning(name, found, "set both by NTP") if abs(apart_s) > _CLOCK_S_WARNED else well(name, found)


def disk(setup: Setup) -> Finding:
    """Check the free space of the store behind the read endpoint. If it does not answer: of the folder in the settings of this command."""
    name = "disk"
    if "read endpoint" not in setup.answers:
        return _local_disk(name, setup)
    try:
        rows = setup.reader.rows(_DISKS)
    except ReadError:
        return skipped(name, f"{setup.read_url} does not report it: an older version, or its ClickHouse user may not read system.disks")
    if not rows:
        return skipped(name, "this reader may not see it, or the store has no local disk: use a token of all tenants")
    row = rows[0]
    return _disk_finding(name, int(row["free"]), int(row["total"]), f"at {row['path']} on the host of {setup.read_url}")


def _local_disk(name: str, setup: Setup) -> Finding:
    """A full disk can be the reason why `legato serve` does not answer."""
    if setup.settings.server is not None:
        return skipped(name, "the read endpoint does not answer, and the store is a ClickHouse server")
    path = setup.settings.store_path
    if not path.exists():
        return skipped(name, f"the read endpoint does not answer, and there is no store at {path} (LEGATO_STORE)")
    usage = shutil.disk_usage(path)
    return _disk_finding(name, usage.free, usage.total, f"at {path} (LEGATO_STORE of this command; the read endpoint does not answer)")


def _disk_finding(name: str, free: int, total: int, where: str) -> Finding:
    found = f"{free / 2**30:,.1f} of {total / 2**30:,.1f} GiB free ({free / total:.0%}) {where}"
    if free < _FREE_BYTES_MIN / 4:
        return fault(name, found, "free disk space, or lower LEGATO_RETENTION_DAYS: on a full disk every emitter gets 503")
    if free < max(_FREE_BYTES_MIN, _FREE_SHARE_MIN * total):
        return warning(name, found, "free disk space, or lower LEGATO_RETENTION_DAYS")
    return well(name, found)


def collector(setup: Setup) -> Finding:
    """Check that the Collector answers, keeps up, and has dropped nothing."""
    name, url = "Collector", setup.collector_metrics_url
    if not url:
        return skipped(name, "not set: --collector http://HOST:8888/metrics")
    try:
        text = setup.get(url).text
    except httpx.TransportError as error:
        return fault(name, f"no answer at {url} ({_cause(error)})", "start it, or set the URL of its metrics: --collector")
    samples = samples_in(text)
    if not any(sample.startswith("otelcol_process_uptime") for sample, _, _ in samples):
        return fault(name, f"{url} does not return a Collector's metrics", "the default is `/metrics` on port 8888")
    if dropped := _sum(samples, "otelcol_exporter_send_failed_"):
        todo = "see its log for `Dropping data`: a token was removed too early (401), or `legato serve` refuses the request"
        return fault(name, f"it has dropped {dropped:,.0f} acknowledged spans or points", todo)
    # Each signal of an exporter has its own queue.
    capacities = {labels: value for sample, labels, value in samples if sample == "otelcol_exporter_queue_capacity"}
    sizes = {labels: value for sample, labels, value in samples if sample == "otelcol_exporter_queue_size"}
    fullest = max((sizes.get(labels, 0.0) / capacity for labels, capacity in capacities.items() if capacity), default=0.0)
    found = f"its fullest queue is {fullest:.0%} full"
    if fullest > _BACKLOG_SHARE:
        return fault(name, found, "`legato serve` does not keep up or does not answer: see the other findings")
    if refused := _sum(samples, "otelcol_exporter_enqueue_failed_"):
        return warning(
            name, f"{found}; {refused:,.0f} spans or points were refused because it was full", "clients sent them again, or lost them"
        )
    return well(name, found)


def samples_in(text: str) -> list[Sample]:
    """Return (name, labels, value) of each sample of a text in Prometheus' format; an empty list for any other text."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return []
    return [(sample.name, tuple(sorted(sample.labels.items())), sample.value) for family in families for sample in family.samples]


def _sum(samples: Sequence[Sample], beginning: str) -> float:
    return sum(value for sample, _, value in samples if sample.startswith(beginning))


def _cause(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


CHECKS = (
    Check("OTLP endpoint", otlp_endpoint),
    Check("read endpoint", read_endpoint),
    Check("write token", write_token, "OTLP endpoint"),
    Check("tokens' file", tokens_file),
    Check("certificate", certificate),
    Check("schema", schema, "read endpoint"),
    Check("clock", clock, "read endpoint"),
    Check("disk", disk),
    Check("Collector", collector),
)
