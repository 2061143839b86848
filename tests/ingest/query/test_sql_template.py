"""Tests of the guard's templates: the cache never accepts a statement that the guard without a cache rejects."""

from __future__ import annotations

import contextlib
import pathlib
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.dashboards.panels import BOARDS, statements
from helpers.platform.examples import examples
from helpers.repo.statements import ESCAPES, READS
from helpers.servers.reading import open_store
from legato_ingest.dashboards.macros import Range, expand
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused
from legato_ingest.query.sql_guard import Guard, Parameters
from legato_ingest.query.sql_template import generalize, template
from legato_ingest.query.sql_text import CanonicalText, Refused, read, tokens
from legato_ingest.storage import Store

# The forms of the macros, and forms that are close to them.
PLACES = (
    "toDateTime({})", "fromUnixTimestamp64Milli({})", "INTERVAL {} second", "INTERVAL {} millisecond", "greatest(60, {})", "{} % 3600",
)  # fmt: skip
CLOSE = ("toDateTime( {})", "toDateTime({}, 'UTC')", "file({})", "INTERVAL {} month", "greatest(61, {})", "{} % 3601", "'toDateTime({})'")


class Engine:
    """A store's parser that counts its calls."""

    def __init__(self, store: Store) -> None:
        self.store, self.calls = store, 0

    def run(self, sql: str, parameters: Parameters, tenant: str) -> bytes:
        """Parse in the store's engine."""
        self.calls += 1
        return self.store.query_bytes(sql, parameters, "TabSeparatedRaw")

    def exact(self, text: str) -> CanonicalText | int:
        """The guard's decision on this very text, without the cache: the canonical text, or the error's code."""
        try:
            return Guard(self.run)._judge(text, {}, ALL_TENANTS)
        except StoreRefused as error:
            return error.code


def decision(guard: Guard, text: str) -> CanonicalText | int:
    """What a guard decides, from its cache where it can."""
    try:
        return guard.check(text, {})
    except StoreRefused as error:
        return error.code


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The parser of a store with the schema."""
    with open_store(tmp_path_factory.mktemp("template") / "store") as opened:
        yield Engine(opened)


def test_panels_over_a_moving_range_are_checked_once(engine: Engine) -> None:
    """The second refresh, over another range with another interval, calls the engine for no statement of any dashboard."""
    guard, asked = Guard(engine.run), [sql for board in BOARDS for sql in statements(board).values()]
    first, second = Range(1_795_000_000_123, 1_795_003_600_123, 60_000), Range(1_795_100_007_456, 1_795_186_407_456, 120_000)
    for sql in asked:
        guard.check(expand(sql, first), {})
    before = engine.calls
    filled = [guard.check(expand(sql, second), {}) for sql in asked]
    assert len(asked) > 80 and before > 0 and engine.calls == before
    assert filled[::9] == [engine.exact(expand(sql, second)) for sql in asked[::9]]


def variants(text: str) -> Iterator[tuple[str, str]]:
    """A statement twice, with other numbers: in a macro's form in the place of its first number, and after its first SELECT."""
    if re.search(r"\b1\b", text):
        yield tuple(re.sub(r"\b1\b", f"toDateTime({number})", text, count=1) for number in (5, 1_795_000_000))  # type: ignore[misc]
    if text.startswith("SELECT "):
        yield tuple(text.replace("SELECT ", f"SELECT {number} % 3600, ", 1) for number in (60, 120))  # type: ignore[misc]


@pytest.mark.parametrize("text", [*READS, *ESCAPES])
def test_no_statement_gets_the_verdict_of_another(engine: Engine, text: str, tmp_path: pathlib.Path) -> None:
    """Each escape and each read, with a time range in it: a warm cache decides as the guard without a cache does."""
    text = text.format(out=tmp_path / "out", secret=tmp_path / "secret") if text in ESCAPES else text
    for warm, cold in variants(text):
        guard = Guard(engine.run)
        assert decision(guard, warm) == engine.exact(warm)
        assert decision(guard, cold) == engine.exact(cold)


PIECES = st.sampled_from(
    "SELECT|1|*|,|(|)|FROM|WHERE|t >=|AND|x|`y`|'s'|numbers(3)|streams|UNION ALL|INTO OUTFILE|file('x')|SETTINGS|readonly = 0|FORMAT|CSV|"
    ";|--|/*|*/|$$|'|`|\"|\\|\n|BETWEEN|AS a|{p:UInt8}|900000000|4000000000000|0xC7D713B49DA0000|-".split("|")
)
NUMBERS = st.one_of(st.integers(0, 2 * 10**18), st.sampled_from([0, 60, 3600, 900_000_000, 900_000_001, 4_000_000_000_000]))


@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(PIECES, st.sampled_from(PLACES), st.sampled_from(CLOSE)), max_size=8),
    st.lists(NUMBERS, min_size=8, max_size=8),
    st.lists(NUMBERS, min_size=8, max_size=8),
)
def test_one_key_one_verdict(engine: Engine, pieces: list[str], first: list[int], second: list[int]) -> None:
    """Statements with the same text after replacement are both accepted or both rejected, and each runs with its own numbers."""
    escaped = [piece if "{}" in piece else piece.replace("{", "{{").replace("}", "}}") for piece in pieces]
    joined = "SELECT toDateTime({}), " + " ".join(escaped)
    texts = [joined.format(7, *numbers) for numbers in (first, second)]
    verdicts = [engine.exact(text) for text in texts]
    keys = {general.text for text in texts if (general := generalize(text)) is not None}
    if len(keys) == 1:
        assert isinstance(verdicts[0], int) == isinstance(verdicts[1], int)
    guard = Guard(engine.run)
    assert [decision(guard, text) for text in texts] == verdicts


def test_only_the_macros_forms_are_generalized() -> None:
    """Other functions' arguments, strings, names, decimals and numbers above the stand-ins stay in the text."""
    for place in PLACES:
        general = generalize(f"SELECT {place.format(15)}")
        stand_in = "4000000000000" if "toDateTime" in place or "Milli" in place else "900000000"
        assert general is not None and general.numbers == ("15",) and stand_in in general.text
    for place in CLOSE:
        assert generalize(f"SELECT {place.format(15)}") is None
    for kept in (
        "toDateTime(1.5)",
        "toDateTime(007)",
        "toDateTime(4000000000001)",
        "INTERVAL 900000001 second",
        "xtoDateTime(5)",
        "`toDateTime(5)`",
        '"toDateTime(5)"',
    ):
        assert generalize(f"SELECT {kept}") is None
    assert generalize("SELECT " + ", ".join(["toDateTime(5)"] * 1_001)) is None


def test_a_template_is_filled_with_other_numbers() -> None:
    """The numbers go where their stand-ins were, also in another order than in the reader's text."""
    general = generalize("SELECT toDateTime(1), 15 % 3600")
    assert general is not None
    made = template(read(general.text), 2)
    assert made is not None and made.fill(("3", "4")).sql == "SELECT toDateTime(3), 4 % 3600"
    checked = read("SELECT 900000001, 4000000000000")
    turned = template(checked, 2)
    assert turned is not None and turned.fill(("3", "4")).sql == "SELECT 4, 3"
    keyed = replace(checked, sql="SELECT 4000000000000, 900000001, 4000000000000", without_key=checked.sql)
    repeated = template(keyed, 2)
    assert repeated is not None and repeated.fill(("3", "4")) == replace(keyed, sql="SELECT 3, 4, 3", without_key="SELECT 4, 3")


def test_a_stand_in_that_is_not_one_number_makes_no_template() -> None:
    """One that is missing, repeated, or part of a string or a decimal."""
    for sql in ("SELECT 1", "SELECT 900000000, 4000000000000", "SELECT '900000000'", "SELECT 900000000.5"):
        assert template(read(sql), 1) is None


def test_a_number_of_the_reader_is_not_taken_for_a_stand_in() -> None:
    """ClickHouse leaves a comment out: the reader's number would be the only one that looks like the stand-in of the comment."""
    assert generalize("SELECT 900000000 /* INTERVAL 5 second */") is None
    assert generalize("SELECT 900000 /* INTERVAL 5 second */") is not None


@pytest.mark.parametrize("quote", ["'", '"', "`"])
@pytest.mark.parametrize("rest", ["\\{0}", "{0}{0}", "\\", "a", "'\"`"])
def test_a_literal_without_an_end_takes_linear_time(quote: str, rest: str) -> None:
    """A statement of 64 KB is no reason to hold the interpreter for half a minute."""
    text = "SELECT " + quote + rest.format(quote) * (60_000 // len(rest))
    began_s = time.monotonic()
    assert generalize(text) is None
    with contextlib.suppress(Refused):
        tokens(text)
    assert time.monotonic() - began_s < 5
