"""Which server is a client's, of streams without response ids: its child, or the only one of the trace; never another call's."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from helpers.builders.judging import RECEIVED_NS
from helpers.builders.spans import native_span, request
from helpers.builders.world_spans import put, trace_id
from legato._timeline import pack
from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.streams import Most, slices_of, streams_in
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.columns import NS_MAX
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

MOST = Most(streams=4_000, bytes=2**29)
HOUR_S = 3_600


def put_stream(store: Store, vantage: str, name: str, start_s: float, *, parent: str = "", late_ms: int = 700, **more: Any) -> None:
    """Store a stream of 60 chunks with a gap of ``late_ms``. ``name``: eight letters, its span; ``more``: of the span or of ``put``."""
    times = 20_000 * np.arange(1, 61) + 1_000 * late_ms * (np.arange(60) >= 30)
    attributes = {"legato.stream.vantage": vantage, "legato.stream.timeline": pack(times.tolist(), None, None, [1] * 60)}
    attributes |= {"gen_ai.response.id": "", **more.pop("attributes", {})}
    tenant, trace, received_ns = more.pop("tenant", ""), more.pop("trace", 0), RECEIVED_NS + round(1e9 * more.pop("received_s", 4 * HOUR_S))
    body = request()
    start_ns = RECEIVED_NS + round(start_s * 1e9)
    span = native_span(body, attributes, trace_id=trace_id(trace), span_id=name.encode(), start_ns=start_ns, rng=random.Random(0), **more)
    span.parent_span_id = parent.encode()
    put(store, body, received_ns, tenant)


def servers(store: Store, most: Most = MOST) -> dict[str, int | None]:
    """Return, by the client's span, how long after it its server starts in ms; ``None`` without a server."""
    pieces = [piece for part in slices_of(store, Due(0, NS_MAX), 250_000, most) for piece in streams_in(store, part, 250_000, most)]
    out: dict[str, int | None] = {}
    for stream in (stream for piece in pieces for stream in piece):
        sent = stream.server.times_ns[0] - 20_000_000 if stream.server is not None else None
        out[stream.span_id.decode()] = None if sent is None else round((int(sent) - stream.start_ns) / 1e6)
    return out


def calls(parents: bool) -> Iterable[tuple[str, str, float, str]]:
    """Return the streams of an agent with three calls in one trace, 30 s apart, each with its server a few ms later."""
    for number in range(3):
        yield "client", f"client_{number}", 30 * number, ""
        yield "server", f"server_{number}", 30 * number + 0.001 * (number + 1), f"client_{number}" if parents else ""


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.parametrize("late_ms", [700, 0])
def test_the_calls_of_an_agent_have_their_own_servers_or_none(store: Store, parents: bool, late_ms: int) -> None:
    """With the clients' spans as parents each has its own, with or without a gap at the server; without them nothing shows which."""
    for vantage, name, start_s, parent in calls(parents):
        put_stream(store, vantage, name, start_s, parent=parent, late_ms=700 if vantage == "client" else late_ms)
    expected = {f"client_{number}": number + 1 if parents else None for number in range(3)}
    assert servers(store) == servers(store, Most(streams=1, bytes=1)) == expected


def test_a_trace_with_one_client_and_one_server_needs_no_ids(store: Store) -> None:
    """Other traces and tenants do not matter, nor does a row that steps back for another one."""
    put_stream(store, "client", "client_0", 0)
    put_stream(store, "server", "server_0", 0.004)
    put_stream(store, "server", "server_1", 0.005, trace=1)
    put_stream(store, "server", "server_2", 0.006, tenant="another")
    assert servers(store)["client_0"] == 4
    put_stream(store, "server", "server_3", 0.007)
    assert servers(store) == {"client_0": None, "server_1": 0, "server_2": 0}
    store.command("ALTER TABLE stream_revs UPDATE outcome = 'superseded' WHERE span_id = 'server_3' SETTINGS mutations_sync = 1")
    assert servers(store)["client_0"] == 4


def test_any_other_stream_of_the_trace_makes_the_server_unknown(store: Store) -> None:
    """A server without an id may be that of a client that has one."""
    put_stream(store, "client", "client_0", 0)
    put_stream(store, "server", "server_0", 0.004)
    put_stream(store, "client", "client_1", 30, attributes={"gen_ai.response.id": "r"})
    assert servers(store) == {"client_0": None, "client_1": None}


@pytest.mark.parametrize(("apart_s", "is_known"), [(HOUR_S - 1, False), (HOUR_S + 1, True), (3 * HOUR_S, True)])
def test_calls_that_are_an_hour_apart_are_different_times_of_a_trace(store: Store, apart_s: int, is_known: bool) -> None:
    """Each has its own server then. The clocks of a client and its server may differ by half an hour."""
    for start_s, number in ((0, 0), (apart_s, 1)):
        put_stream(store, "client", f"client_{number}", start_s)
        put_stream(store, "server", f"server_{number}", start_s + 0.004)
    assert servers(store) == dict.fromkeys(("client_0", "client_1"), 4 if is_known else None)


@pytest.mark.parametrize(("skew_s", "found"), [(1_799, 1_799_000), (-1_799, -1_799_000), (1_800, None)])
def test_a_single_server_is_near_its_client(store: Store, skew_s: int, found: int | None) -> None:
    """Half an hour at most."""
    put_stream(store, "client", "client_0", 0)
    put_stream(store, "server", "server_0", skew_s)
    assert servers(store)["client_0"] == found


def test_of_several_children_the_last_one_counts(store: Store) -> None:
    """A client tried again within one span. A child at another time, by a clock that is hours wrong, is none."""
    put_stream(store, "client", "client_0", 0)
    for number, start_s in enumerate((0.002, 0.009, 0.005, 2 * HOUR_S + 1)):
        put_stream(store, "server", f"server_{number}", start_s, parent="client_0")
    assert servers(store)["client_0"] == 9


@pytest.mark.parametrize("names", [("server_b", "client_a", "server_a"), ("client_a", "server_a", "server_b")])
@pytest.mark.parametrize(("late_ms", "ids", "judged"), [(700, "ab", {"server_b", "client_a"}), (0, " b", set())])
def test_the_client_of_another_call_takes_no_stall(store: Store, names: tuple[str, ...], late_ms: int, ids: str, judged: set[str]) -> None:
    """The client of call b was not recorded, that of call a was. The order does not matter, and the client of b may follow."""
    arrived_ms = 0
    worker = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), received_ms=lambda: arrived_ms)

    def arrive(name: str, at_s: int) -> set[str]:
        nonlocal arrived_ms
        own = {"gen_ai.response.id": ids["ab".index(name[-1])].strip()}
        put_stream(store, name[:6], name, 0, received_s=at_s, late_ms=late_ms if name[-1] == "a" else 700, attributes=own)
        arrived_ms = RECEIVED_NS // 10**6 + 1_000 * at_s + 1
        worker.step()
        return {span.decode() for (span,) in store.select("SELECT span_id FROM verdicts FINAL WHERE cause != 'base'")}

    *_, stalls = (arrive(name, at_s) for at_s, name in enumerate(names, 1))
    assert stalls == judged
    assert arrive("client_b", 4) == judged - {"server_b"} | {"client_b"}


# Name, response id, and parent of each stream. The number is the call's: its streams begin 30 s after those of the call before.
OWN_IDS = [(f"{name}_{n}", f"{name[0]}{n}", "") for n in (0, 1) for name in ("client", "server")]
OWN_IDS_BELOW = [(name, own, f"client_{name[-1]}" if name[0] == "s" else "") for name, own, _ in OWN_IDS]
PROXY = [("client_0", "a", ""), ("server_0", "a", "client_0"), ("server_1", "b", "server_0")]
FAR = [*PROXY[:2], ("gatewa_0", "", "server_0"), ("gatewa_1", "", "gatewa_0"), ("server_1", "b", "gatewa_1")]
ALONE = ("server_2", "c", "another_")


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    ("streams", "judged"),
    [
        (OWN_IDS, {"client_0", "client_1"}),  # of two calls through a gateway that gives each response its own id
        (OWN_IDS_BELOW, {"client_0", "client_1"}),
        (PROXY, {"client_0"}),  # the proxy has the client's id, and the engine's server its own
        (FAR, {"client_0"}),
        ([*PROXY, ALONE], {"client_0", "server_2"}),  # the client of this call was not recorded
        ([*OWN_IDS_BELOW, ALONE], {"client_0", "client_1"}),  # it may be a client's, as the others are
    ],
)
def test_a_stall_of_a_call_with_several_ids_counts_once(
    store: Store, streams: list[tuple[str, str, str]], judged: set[str], is_reversed: bool
) -> None:
    """At the client, whether it arrives first or last."""
    arrived_ms = 0
    worker = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), received_ms=lambda: arrived_ms)
    for at_s, (name, own, parent) in enumerate(reversed(streams) if is_reversed else streams, 1):
        attributes = {"gen_ai.response.id": own}
        vantage, start_s = name[:6].replace("gatewa", "gateway"), 30 * int(name[-1])
        put_stream(store, vantage, name, start_s, parent=parent, received_s=at_s, attributes=attributes)
        arrived_ms = RECEIVED_NS // 10**6 + 1_000 * at_s + 1
        worker.step()
    assert {span.decode() for (span,) in store.select("SELECT span_id FROM verdicts FINAL WHERE cause != 'base'")} == judged


@pytest.mark.parametrize("parents", [True, False])
def test_the_order_of_arrival_changes_no_verdict(store: Store, parents: bool) -> None:
    """The second call of a trace takes the first one's server away, whenever it arrives; with parents both have their own."""
    results, streams, now_ms = [], list(calls(parents)), [0]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 2, 0, 3), (2, 0, 3, 1)):
        for table in ("stream_revs", "verdicts", "attribution_runs"):
            store.command(f"TRUNCATE TABLE {table}")
        judge = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), received_ms=lambda: now_ms[0])
        for received_s, place in enumerate(order, 60):
            vantage, name, start_s, parent = streams[place]
            put_stream(store, vantage, name, start_s, parent=parent, received_s=received_s)
            now_ms[0] = RECEIVED_NS // 10**6 + 1_000 * received_s + 1
            judge.step()
        columns = "span_id, cause, parts, missing, evidence, excluded"
        results.append(store.select(f"SELECT {columns} FROM verdicts FINAL WHERE vantage = 'client' ORDER BY span_id"))
        assert results[-1] == results[0]
    assert len(results[0]) == 2 and {"server" in row[3] for row in results[0]} == {not parents}
