"""Speculation and prefix cache in `legato blame`: from steps, and from scraped counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from helpers.builders.batches import received_points
from helpers.builders.points import metrics_request, total
from helpers.builders.world_spans import put
from helpers.servers.command import read_json, read_text
from helpers.servers.reading import open_store, reading
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store without rows; each test adds its own engine."""
    with open_store(tmp_path_factory.mktemp("blame") / "store") as opened:
        yield opened


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """The read endpoint."""
    with reading(store) as address:
        yield address


def typed(url: str, *words: str) -> str:
    """The text output of `legato blame`."""
    return read_text(url, "blame", *words)


def data(url: str, *words: str) -> Any:
    """The JSON output of `legato blame`."""
    return read_json(url, "blame", *words)


def test_speculation_is_a_deficit_of_rate(url: str, store: Store) -> None:
    """An engine keeps three of four drafts, and none for 10 of 40 s: the loss is a time at its own mean."""
    begun, step_us, requests = 1_795_000_000_000_000_000, 20_000, 4
    made = [
        Step(
            number=n,
            recorded_ns=begun + 1000 * step_us * n,
            interval_us=step_us,
            decode_requests=requests,
            draft_tokens=4 * requests,
            accepted_tokens=0 if 500 <= n < 1000 else 3 * requests,
        )
        for n in range(2000)
    ]
    put(store, steps_request(Engine("spec", 5), made), begun + 60 * 10**9)
    (row,) = data(url, "--since", "all", "--engine", "spec")["speculation"]
    page = typed(url, "--since", "all").replace("\n", " ")
    mean = (3 * 4 + 1 * 1) / 4
    assert row["tokens_per_step"] == mean and row["tokens_per_step_worst"] == 1
    missing_tokens = 500 * requests * (mean - 1)
    assert row["lost_us"] == pytest.approx(missing_tokens / mean * step_us, rel=1e-6)
    assert row["generating_us"] == 2000 * requests * step_us
    assert "spec: 56.2 % of 32,000 drafted tokens kept, 3.2 tokens per step, in the worst 10 s 1.0" in page


CACHE_HITS, CACHE_QUERIES = "legato.engine.prefix_cache.hits", "legato.engine.prefix_cache.queries"
FOREIGN_HITS, FOREIGN_QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
MINUTE_NS = 60 * 10**9
CACHE_BEGUN = 1_795_100_000 * 10**9 // MINUTE_NS * MINUTE_NS


def counted(store: Store, engine: str, names: tuple[str, str], values: list[tuple[int, int]]) -> None:
    """Cache hits and queries every 30 s, as a scraper of the engine sends them."""
    body = metrics_request({"legato.engine.id": engine, "host.name": "node"})
    for at, pair in enumerate(values):
        for name, value in zip(names, pair, strict=True):
            total(body, name, value, CACHE_BEGUN + 10**9 + at * MINUTE_NS // 2)
    store.insert("node_samples", received_points(body, tenant="", now_ns=CACHE_BEGUN, limits=Limits(retention_days=0)).samples)


def cached_steps(store: Store, engine: str, queued_us: tuple[int, int]) -> None:
    """Steps of 20 ms plus 0.5 ms per prompt token; two requests, one in the first and one in the second minute."""
    made = [
        Step(n, CACHE_BEGUN + 50_000_000 * n, interval_us=20_000 + 500 * (n % 7) * 10, prefill_requests=1, prefill_tokens=(n % 7) * 10)
        for n in range(1, 200)
    ]
    ended = [FinishedRequest(10, f"{engine}-0", queued_us=queued_us[0], prefill_us=100_000)]
    later = [FinishedRequest(1399, f"{engine}-1", queued_us=queued_us[1], prefill_us=100_000)]
    put(store, steps_request(Engine(engine, 5), made, ended), CACHE_BEGUN + MINUTE_NS)
    last = Step(1_400, CACHE_BEGUN + MINUTE_NS + 30 * 10**9, interval_us=20_000, prefill_tokens=0)
    put(store, steps_request(Engine(engine, 5), [last], later), CACHE_BEGUN + 2 * MINUTE_NS)


@pytest.mark.parametrize("names", [(CACHE_HITS, CACHE_QUERIES), (FOREIGN_HITS, FOREIGN_QUERIES)], ids=["agent", "collector"])
def test_the_prefix_cache_saves_time(url: str, store: Store, names: tuple[str, str]) -> None:
    """400 tokens of 0.5 ms in the first minute, with a request that waited 150 ms; 1,000 in the second, with one that waited 2 s.

    The engine restarts in between, and a Collector scrapes it as well.
    """
    engine = f"cache {names[0][:6]}"
    counted(store, engine, names, [(100, 1_000), (500, 2_000), (1_000, 3_000), (500, 1_500)])
    if names[0] == CACHE_HITS:
        counted(store, engine, (FOREIGN_HITS, FOREIGN_QUERIES), [(0, 0), (0, 0), (9_000, 90_000)])
    cached_steps(store, engine, (150_000, 2_000_000))
    (row,) = data(url, "--since", "all", "--engine", engine)["prefix_cache"]
    assert (row["cached_tokens"], row["prompt_tokens"], row["requests"]) == (400 + 500 + 500, 1_000 + 1_000 + 1_500, 2)
    assert row["token_us"] == pytest.approx(500) and row["saved_us"] == pytest.approx(700_000)
    # All savings of the second minute, and the queue time of the first.
    assert row["wasted_us"] == pytest.approx(150_000 + 500_000)
    assert row["queue_us"] == 2_150_000 and row["prefill_us"] == 200_000
    page = typed(url, "--since", "all", "--engine", engine).replace("\n", " ").replace("  ", " ")
    assert "40.0 % of 3,500 prompt tokens were cached, which saved 700 ms of prefill at 500 µs a token, 350 ms a request (n=2)" in page
    assert "the requests had waited about 650 ms of it (92.9 %) in the queue" in page


def test_the_wait_of_one_request_does_not_reduce_the_savings_of_others(url: str, store: Store) -> None:
    """Ten requests saved 50 ms each; one had waited 10 s, so only its 50 ms are no gain. Minutes without hits add nothing."""
    counted(store, "one", (CACHE_HITS, CACHE_QUERIES), [(0, 0), (1_000, 2_000), (1_000, 2_000), (1_000, 3_000)])
    cached_steps(store, "one", (10_000_000, 3_000_000))
    ended = [FinishedRequest(11, f"one-{number}", prefill_us=100_000) for number in range(2, 11)]
    put(store, steps_request(Engine("one", 6), [Step(11, CACHE_BEGUN + 10**9, interval_us=20_000)], ended), CACHE_BEGUN + MINUTE_NS)
    (row,) = data(url, "--since", "all", "--engine", "one")["prefix_cache"]
    assert row["requests"] == 11 and row["queue_us"] == 13_000_000
    assert row["saved_us"] == pytest.approx(500_000) and row["wasted_us"] == pytest.approx(50_000)


def test_the_saving_of_a_cache_is_unknown_without_steps(url: str, store: Store) -> None:
    """The cached share is still reported; an engine without hits is left out."""
    counted(store, "paged", (CACHE_HITS, CACHE_QUERIES), [(0, 0), (300, 1_000)])
    counted(store, "cold", (CACHE_HITS, CACHE_QUERIES), [(0, 0), (0, 1_000)])
    (row,) = data(url, "--since", "all", "--engine", "paged")["prefix_cache"]
    assert row["cached_tokens"] == 300 and {row[name] for name in ("token_us", "saved_us", "wasted_us", "queue_us", "prefill_us")} == {None}
    both = typed(url, "--since", "all").replace("\n", " ").replace("  ", " ")
    assert "cold: 0 % of 1,000 prompt tokens were cached" in both or "cold: 0.0 % of 1,000 prompt tokens were cached" in both
    page = typed(url, "--since", "all", "--engine", "paged").replace("\n", " ").replace("  ", " ")
    assert "paged: 30.0 % of 1,000 prompt tokens were cached; the time saved is not known" in page
    assert "Prefix cache" not in typed(url, "--since", "all", "--engine", "cold")


OWN_DRAFTED, OWN_KEPT = "legato.engine.speculation.draft_tokens", "legato.engine.speculation.accepted_tokens"
FOREIGN_DRAFTED, FOREIGN_KEPT = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"


def speculating(url: str, *words: str) -> tuple[list[Any], list[Any]]:
    """The speculation from steps, and from scraped metrics."""
    answer = data(url, "--since", "all", *words)
    return answer["speculation"], answer["speculation_by_page"]


@pytest.mark.parametrize("names", [(OWN_DRAFTED, OWN_KEPT), (FOREIGN_DRAFTED, FOREIGN_KEPT)], ids=["agent", "collector"])
def test_speculation_from_scraped_metrics_without_steps(url: str, store: Store, names: tuple[str, str]) -> None:
    """800 of 1,000 drafted tokens are kept in minute 1, 100 of 1,000 in minute 2, and 900 of 2,000 in minute 3, after a restart.

    Minute 2 kept 350 fewer than the mean of 45 %. Initial counter values are not counted. If a Collector scrapes the engine as well,
    the agent's counters are used.
    """
    engine = f"scraped {names[0][:6]}"
    values = [(5_000, 1_000), (6_000, 1_800), (6_500, 1_900), (7_000, 1_900), (1_000, 500), (2_000, 900)]
    counted(store, engine, names, values)
    if names[0] == OWN_DRAFTED:
        counted(store, engine, (FOREIGN_DRAFTED, FOREIGN_KEPT), [(0, 0), (9_000, 0)])
    from_steps, (row,) = speculating(url, "--engine", engine)
    assert from_steps == [] and (row["drafted"], row["accepted"]) == (4_000, 1_800)
    assert (row["drafted_worst"], row["accepted_worst"]) == (1_000, 100) and row["lost_tokens"] == pytest.approx(350)
    page = typed(url, "--since", "all", "--engine", engine).replace("\n", " ").replace("  ", " ")
    assert f"{engine}: 45.0 % of 4,000 drafted tokens kept (scraped metrics), in the worst minute 10.0 % of 1,000" in page
    assert "below its own mean: 350 tokens fewer; the lost time is not known, because its steps report no drafts" in page


def test_each_series_of_an_engine_grows_separately(url: str, store: Store) -> None:
    """Two models behind one metrics endpoint: the smaller counter is not a restart of the larger one."""
    body = metrics_request({"legato.engine.id": "two models", "host.name": "node"})
    for at, (large, small) in enumerate([(1_000, 10), (1_100, 110)]):
        for model, value in (("large", large), ("small", small)):
            for name, count in ((OWN_DRAFTED, value), (OWN_KEPT, value // 2)):
                total(body, name, count, CACHE_BEGUN + 10**9 * (1 + at), attributes={"model_name": model})
    store.insert("node_samples", received_points(body, tenant="", now_ns=CACHE_BEGUN, limits=Limits(retention_days=0)).samples)
    _, (row,) = speculating(url, "--engine", "two models")
    assert (row["drafted"], row["accepted"]) == (200, 100)


def drafting(store: Store, engine: str, drafts: int | None, tenant: str = "") -> None:
    """100 steps of this engine with this number of drafts, half of them kept."""
    kept = None if drafts is None else drafts // 2
    made = [
        Step(n, CACHE_BEGUN + 20_000_000 * n, interval_us=20_000, decode_requests=1, draft_tokens=drafts, accepted_tokens=kept)
        for n in range(1, 101)
    ]
    put(store, steps_request(Engine(engine, 5), made), CACHE_BEGUN + MINUTE_NS, tenant)


def test_an_engine_of_two_tenants_is_two_engines(url: str, store: Store) -> None:
    """Each has its own mean, and the text names the tenant."""
    drafting(store, "shared id", 2, "acme")
    drafting(store, "shared id", 4, "zeta")
    rows, _ = speculating(url, "--engine", "shared id")
    assert [(row["tenant"], row["drafted"], row["tokens_per_step"]) for row in rows] == [("acme", 200, 2), ("zeta", 400, 3)]
    page = typed(url, "--since", "all", "--engine", "shared id")
    assert "acme · shared id: 50.0 % of 200" in page and "zeta · shared id: 50.0 % of 400" in page


def test_steps_take_precedence_over_scraped_metrics(url: str, store: Store) -> None:
    """200 drafted tokens from steps, not the 9,000 of the scraped metrics; steps without drafts leave the scraped metrics."""
    for engine, drafts in (("both", 2), ("blind", None)):
        drafting(store, engine, drafts)
        counted(store, engine, (OWN_DRAFTED, OWN_KEPT), [(0, 0), (9_000, 0)])
    (row,), scraped = speculating(url, "--engine", "both")
    assert (row["drafted"], row["accepted"], scraped) == (200, 100, [])
    page = typed(url, "--since", "all", "--engine", "both")
    assert "50.0 % of 200 drafted tokens kept" in page and "scraped metrics" not in page
    by_steps, (blind,) = speculating(url, "--engine", "blind")
    assert (by_steps, blind["drafted"], blind["accepted"]) == ([], 9_000, 0)
    every_step, every_scrape = speculating(url, "--limit", "100")
    assert {row["engine_id"] for row in every_step}.isdisjoint(row["engine_id"] for row in every_scrape)


def test_steps_of_another_tenant_do_not_hide_scraped_metrics(url: str, store: Store) -> None:
    """An engine belongs to one tenant."""
    drafting(store, "namesake", 2)
    body = metrics_request({"legato.engine.id": "namesake", "host.name": "node"})
    for at, value in enumerate((0, 500)):
        for name in (OWN_DRAFTED, OWN_KEPT):
            total(body, name, value, CACHE_BEGUN + 10**9 * (1 + at))
    store.insert("node_samples", received_points(body, tenant="other", now_ns=CACHE_BEGUN, limits=Limits(retention_days=0)).samples)
    (by_steps,), (scraped,) = speculating(url, "--engine", "namesake")
    assert by_steps["drafted"] == 200 and (scraped["tenant"], scraped["drafted"]) == ("other", 500)


@pytest.mark.parametrize(
    ("engine", "names", "values"),
    [
        ("neither", (CACHE_QUERIES, CACHE_HITS), [(0, 0), (10, 5)]),
        ("idle", (OWN_DRAFTED, OWN_KEPT), [(700, 300), (700, 300), (700, 300)]),
        ("seen once", (OWN_DRAFTED, OWN_KEPT), [(700, 300)]),
        ("without accepted tokens", (OWN_DRAFTED, "legato.engine.speculation.drafts"), [(0, 0), (900, 300)]),
        ("without drafts", ("legato.engine.speculation.drafts", OWN_KEPT), [(0, 0), (900, 300)]),
    ],
)
def test_uncounted_speculation_is_left_out(
    url: str, store: Store, engine: str, names: tuple[str, str], values: list[tuple[int, int]]
) -> None:
    """No 0 and no heading."""
    drafting(store, engine, None)
    counted(store, engine, names, values)
    assert speculating(url, "--engine", engine) == ([], [])
    assert "Speculation" not in typed(url, "--since", "all", "--engine", engine)
