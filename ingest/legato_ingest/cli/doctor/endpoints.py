"""What `legato doctor` learns at the doors and from files: is anybody there, does it take tokens, what time is it, is there room.

One idea: the first check of a door notes whether it is open; those that need it say so in a word instead of failing again. Nothing is sent
but an empty request, which changes nothing.
"""

from __future__ import annotations

import re
import shutil
import time
from datetime import UTC, datetime, timedelta

import httpx

from legato_ingest.auth import tls
from legato_ingest.auth.tokens import READ, WRITE, load
from legato_ingest.cli.client import ReadError
from legato_ingest.cli.doctor.findings import Check, Finding, Setup, fault, skipped, warning, well
from legato_ingest.errors import LegatoError

__all__ = ["CHECKS"]

_PROTOBUF = {"Content-Type": "application/x-protobuf"}
_CLOCK_S_WARNED, _CLOCK_S_MAX = 2.0, 30.0
_FREE_SHARE_MIN, _FREE_BYTES_MIN = 0.1, 2**30
_BACKLOG_SHARE = 0.5
_SAMPLE = re.compile(r"^(\w+)(\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def otlp_door(setup: Setup) -> Finding:
    """Whether the OTLP port answers, and the store behind it."""
    name, url = "OTLP door", setup.otlp_url
    try:
        reply = setup.get(f"{url}/readyz")
    except httpx.TransportError as error:
        return fault(name, f"nobody answers at {url} ({_cause(error)})", "start `legato serve`, or name it: --otlp, LEGATO_ENDPOINT")
    if reply.status_code == 503:
        return fault(name, f"{url} answers, and its store does not", "see its log: disk, memory, or the ClickHouse server")
    if reply.status_code != 200 or reply.text.strip() != "ready":
        return fault(name, f"{url} answers (status {reply.status_code}), but not as Legato's OTLP door", "another program's port? --otlp")
    setup.answers.add(name)
    return well(name, f"{url} is ready")


def read_door(setup: Setup) -> Finding:
    """Whether the read port answers this reader."""
    name = "read door"
    try:
        setup.reader.rows("SELECT 1 AS one")
    except ReadError as error:
        todo = (
            "a reader's token goes into LEGATO_READ_PASSWORD"
            if "user and a password" in str(error)
            else "--url or LEGATO_READ_URL say where it is"
        )
        return fault(name, str(error), todo)
    setup.answers.add(name)
    return well(name, f"{setup.read_url} answers")


def write_token(setup: Setup) -> Finding:
    """Whether what an emitter would send is taken from it."""
    name = "write token"
    reply = setup.post(f"{setup.otlp_url}/v1/traces", b"", _PROTOBUF)
    if reply.status_code == 401 and not setup.token:
        return fault(name, "a token is wanted, and none is set", "`legato token add NAME --tenant TENANT --write`; LEGATO_TOKEN")
    if reply.status_code == 401:
        return fault(name, "LEGATO_TOKEN is not one that may write here", "`legato token list` shows those that may; add one")
    if reply.status_code != 200:
        return fault(name, f"an empty request got {reply.status_code}", "see the log of `legato serve`")
    return well(name, "an emitter's request is taken" if setup.token else "no token is wanted")


def tokens_file(setup: Setup) -> Finding:
    """Whether the file of tokens can be used, and who could."""
    name, path = "tokens' file", setup.settings.tokens_file
    if path is None:
        return skipped(name, "LEGATO_TOKENS_FILE is not set: whoever reaches the doors may pass them")
    try:
        tokens = load(path)
    except LegatoError as error:
        return fault(name, str(error), "a running server keeps the tokens that it read before: mend the file before it is started again")
    writers, readers = (sum(token.may == may for token in tokens) for may in (WRITE, READ))
    if path.stat().st_mode & 0o022:
        return warning(name, f"others may write {path}", f"chmod go-w {path}")
    if not writers or not readers:
        which = "write" if not writers else "read"
        return warning(name, f"no token of {path} may {which}", f"`legato token add NAME --tenant TENANT --{which}`")
    return well(name, f"{writers} may write, {readers} may read")


def certificate(setup: Setup) -> Finding:
    """Whether the certificate is good, and for how long."""
    name, path = "certificate", setup.settings.tls_cert_file
    if path is None:
        return skipped(name, "LEGATO_TLS_CERT_FILE is not set: the doors speak plain HTTP")
    try:
        tls.check(path, setup.settings.tls_key_file)
    except LegatoError as error:
        return fault(name, str(error), "renew it, then restart `legato serve`")
    left = tls.expires_at(path) - datetime.now(UTC)
    if left < timedelta(days=14):
        return warning(name, f"{path} is good for {left.days} days", "renew it, then restart `legato serve`")
    return well(name, f"{path} is good for {left.days} days")


def schema(setup: Setup) -> Finding:
    """Whether the store's schema is this program's."""
    from legato_ingest.storage import migrate

    name = "schema"
    known = {int(row["number"]): row["sha256"] for row in setup.reader.rows("SELECT number, sha256 FROM schema_migrations FINAL")}
    if not known:
        return skipped(name, "this reader may not see it: ask as an operator")
    files = {file.number: file.sha256 for file in migrate.load(setup.settings.schema_dir)}
    if max(known) > max(files):
        return fault(
            name,
            f"the store is at {max(known)}, this program knows {max(files)}",
            "use the newer program: an older `legato serve` will not start",
        )
    if missing := sorted(set(files) - set(known)):
        return fault(
            name, f"the store lacks {len(missing)} files, from {missing[0]:04}", "`legato schema apply`, or restart `legato serve`"
        )
    if changed := [number for number in files if files[number] != known[number]]:
        return fault(name, f"file {changed[0]:04} is not the one that was applied", "restore it: a change is a new file")
    return well(name, f"current, at {max(known)}")


def clock(setup: Setup) -> Finding:
    """How far this host's clock and the store's are apart."""
    name = "clock"
    before = time.time()
    (row,) = setup.reader.rows("SELECT toUnixTimestamp64Milli(now64(3)) AS ms")
    apart_s = int(row["ms"]) / 1000 - (before + time.time()) / 2
    found = f"this host and the store are {abs(apart_s):,.1f} s apart" if abs(apart_s) >= 0.1 else "this host and the store agree"
    if abs(apart_s) > _CLOCK_S_MAX:
        return fault(name, found, "set both by NTP: streams would lie at the wrong time, and engine steps beside the wrong streams")
    return warning(name, found, "set both by NTP") if abs(apart_s) > _CLOCK_S_WARNED else well(name, found)


def disk(setup: Setup) -> Finding:
    """Whether an embedded store has room to grow."""
    name = "disk"
    if setup.settings.server is not None:
        return skipped(name, "the store is a server's")
    folder = setup.settings.store_path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    found = f"{usage.free / 2**30:,.1f} GiB free at {setup.settings.store_path} ({usage.free / usage.total:.0%})"
    if usage.free < _FREE_BYTES_MIN / 4:
        return fault(name, found, "make room: a full disk is a 503 to every emitter. LEGATO_RETENTION_DAYS keeps less")
    if usage.free < max(_FREE_BYTES_MIN, _FREE_SHARE_MIN * usage.total):
        return warning(name, found, "make room, or keep less (LEGATO_RETENTION_DAYS)")
    return well(name, found)


def collector(setup: Setup) -> Finding:
    """Whether the Collector is there, keeps up, and has dropped nothing."""
    name, url = "Collector", setup.collector_metrics_url
    if not url:
        return skipped(name, "not named: --collector http://HOST:8888/metrics")
    try:
        page = setup.get(url).text
    except httpx.TransportError as error:
        return fault(name, f"nobody answers at {url} ({_cause(error)})", "start it, or name its metrics port: --collector")
    samples = [(name, labels, float(value)) for name, labels, value in _SAMPLE.findall(page)]
    if not any(sample.startswith("otelcol_process_uptime") for sample, _, _ in samples):
        return fault(name, f"{url} is not a Collector's metrics page", "it is `/metrics` on port 8888, unless set otherwise")
    if dropped := _sum(samples, "otelcol_exporter_send_failed_"):
        todo = "see its log for `Dropping data`: a token that was removed too early (401), or a request that the ingest refuses"
        return fault(name, f"it has dropped {dropped:,.0f} spans or points that it had acknowledged", todo)
    # Each signal of an exporter has a queue of its own.
    rooms = {labels: value for sample, labels, value in samples if sample == "otelcol_exporter_queue_capacity"}
    sizes = {labels: value for sample, labels, value in samples if sample == "otelcol_exporter_queue_size"}
    fullest = max((sizes.get(labels, 0.0) / room for labels, room in rooms.items() if room), default=0.0)
    found = f"its fullest queue is at {fullest:.0%}"
    if fullest > _BACKLOG_SHARE:
        return fault(name, found, "the ingest does not keep up, or is away: see the other findings")
    if refused := _sum(samples, "otelcol_exporter_enqueue_failed_"):
        return warning(name, f"{found}; {refused:,.0f} were refused as it was full", "clients sent them again, or lost them")
    return well(name, found)


def _sum(samples: list[tuple[str, str, float]], beginning: str) -> float:
    return sum(value for sample, _, value in samples if sample.startswith(beginning))


def _cause(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


CHECKS = (
    Check("OTLP door", otlp_door),
    Check("read door", read_door),
    Check("write token", write_token, "OTLP door"),
    Check("tokens' file", tokens_file),
    Check("certificate", certificate),
    Check("schema", schema, "read door"),
    Check("clock", clock, "read door"),
    Check("disk", disk),
    Check("Collector", collector),
)
