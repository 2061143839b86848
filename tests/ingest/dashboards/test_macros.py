"""Tests of Grafana's variables and macros: the text equals the plugin's, and a value cannot change the statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.sql_fragments import chosen, chosen_number, chosen_text, filters, with_chosen
from helpers.platform.examples import examples
from legato_ingest.dashboards.macros import MacroError, Range, expand
from legato_ingest.storage import Store

# The range and the interval of the recorded texts of the plugin.
SPAN = Range(1_767_225_600_000, 1_767_229_200_000, 15_000)
MEASURED = {
    "$__timeFilter(t)": "t >= toDateTime(1767225600) AND t <= toDateTime(1767229200)",
    "$__timeFilter_ms(t)": "t >= fromUnixTimestamp64Milli(1767225600000) AND t <= fromUnixTimestamp64Milli(1767229200000)",
    "$__fromTime": "toDateTime(1767225600)",
    "$__toTime": "toDateTime(1767229200)",
    "$__fromTime_ms": "fromUnixTimestamp64Milli(1767225600000)",
    "$__toTime_ms": "fromUnixTimestamp64Milli(1767229200000)",
    "$__timeInterval(t)": "toStartOfInterval(toDateTime(t), INTERVAL 15 second)",
    "$__timeInterval_ms(t)": "toStartOfInterval(toDateTime64(t, 3), INTERVAL 15000 millisecond)",
    "$__interval_s": "15",
    "$__interval_ms": "15000",
}
Asked = Callable[[str, str | Sequence[str]], object]


@pytest.fixture
def answer(shared_store: Store) -> Asked:
    """The result of a SELECT with this value of the variable ``v``."""

    def ask(expression: str, value: str | Sequence[str]) -> object:
        ((cell,),) = shared_store.select(expand(with_chosen(f"SELECT {expression} AS found"), SPAN, {"v": value}))
        return cell

    return ask


# Macros.


@pytest.mark.parametrize(("macro", "words"), MEASURED.items())
def test_a_macro_expands_as_in_the_plugin(macro: str, words: str) -> None:
    """Alone, next to others and more than once."""
    assert expand(macro, SPAN) == words
    assert expand(f"({macro}) + {macro}, $__interval_s", SPAN) == f"({words}) + {words}, 15"


def test_arguments() -> None:
    """Full column names, without surrounding blanks; parentheses after a macro without arguments are kept."""
    assert expand("$__timeFilter( a.start_time )", SPAN).startswith("a.start_time >= ")
    assert expand("$__timeInterval(minute) AS time", SPAN) == "toStartOfInterval(toDateTime(minute), INTERVAL 15 second) AS time"


def test_the_expanded_macros_run(shared_store: Store) -> None:
    """On the engine, over a range in whole seconds: both ends are included."""
    times = "SELECT toDateTime(arrayJoin([1767225599, 1767225600, 1767229200, 1767229201]), 'UTC') AS t"
    rows = shared_store.select(expand(f"SELECT toUnixTimestamp($__timeInterval(t)) FROM ({times}) WHERE $__timeFilter(t)", SPAN))
    assert [row[0] for row in rows] == [1_767_225_600, 1_767_229_200]
    times = "SELECT fromUnixTimestamp64Milli(arrayJoin([1767225599999, 1767225600000, 1767229200000, 1767229200001])) AS t"
    rows = shared_store.select(expand(f"SELECT count() FROM ({times}) WHERE $__timeFilter_ms(t)", SPAN))
    assert rows == [(2,)]


@pytest.mark.parametrize("interval_ms", [0, 1, 999, 1000, 1999])
def test_a_point_is_a_second_or_longer(interval_ms: int) -> None:
    """The plugin rounds down to seconds, and never to 0."""
    assert expand("$__interval_s", Range(0, 1, interval_ms)) == "1"


def test_a_range_in_seconds_is_rounded_down() -> None:
    """As in the plugin."""
    assert expand("$__fromTime $__toTime", Range(1_999, 2_999)) == "toDateTime(1) toDateTime(2)"


@pytest.mark.parametrize(
    "macro", ["$__timeFrom(t)", "$__timeGroup(t, 5m)", "$__conditionalAll(a, $v)", "$__unknown", "$__interval", "$__dt(a, b)"]
)
def test_a_macro_that_panels_do_not_use_is_refused(macro: str) -> None:
    """The error names it and the known macros."""
    with pytest.raises(MacroError, match=r"\$__\w+ is not a macro of Legato's panels: expected one of .*timeFilter"):
        expand(f"SELECT {macro}", SPAN)


# Variables.


@pytest.mark.parametrize("form", [":raw", ":csv", ":sqlstring", ":singlequote", ":json", ""])
def test_a_format_that_can_be_broken_out_of_is_refused(form: str) -> None:
    """Only one format escapes quotes and backslashes."""
    with pytest.raises(MacroError, match="expected queryparam"):
        expand(f"SELECT '${{v{form}}}'", SPAN, {"v": "x"})


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("shop", "var-v=shop"),
        (["a", "b"], "var-v=a&var-v=b"),
        ("", "var-v="),
        ("$__all", "var-v=$__all"),
        (["$__all", "x"], "var-v=$__all&var-v=x"),
        ("it's", "var-v=it%27s"),
        ("a\\b", "var-v=a%5Cb"),
        ("a+b c&d=e", "var-v=a%2Bb%20c%26d%3De"),
        ("100%25", "var-v=100%2525"),
        ("(1)*!~-_.", "var-v=%281%29%2A%21~-_."),
        ("ü🦙", "var-v=%C3%BC%F0%9F%A6%99"),
        ("${v:queryparam} $__timeFilter(t)", "var-v=%24%7Bv%3Aqueryparam%7D%20%24__timeFilter%28t%29"),
        ("\0\n\t", "var-v=%00%0A%09"),
    ],
)
def test_a_value_is_encoded_as_grafana_does(given: str | Sequence[str], written: str) -> None:
    """Like encodeURIComponent, with quotes and parentheses encoded too; the value for "All" is unchanged."""
    assert expand("${v:queryparam}", SPAN, {"v": given}) == written


def test_a_variable_without_a_value_is_at_all() -> None:
    """Without any values as well; values of other variables change nothing; an empty list gives an empty text."""
    assert expand("${v:queryparam}", SPAN) == expand("${v:queryparam}", SPAN, {"w": "x"}) == "var-v=$__all"
    assert expand("${v:queryparam}", SPAN, {"v": []}) == ""


texts = st.text(max_size=40) | st.text("'\\%+&=$_{}()`\"/*-; \0\n", max_size=40)


@given(texts)
def test_an_encoded_value_has_no_sql_syntax(value: str) -> None:
    """Letters, digits and a few signs: no quote, backslash, blank or dollar; and it can be decoded."""
    written = expand("${v:queryparam}", SPAN, {"v": value}).removeprefix("var-v=")
    if value != "$__all":
        assert set(written) <= set("%-_.~") | {character for character in written if character.isascii() and character.isalnum()}
        assert unquote(written) == value


# Values in panels.


@given(st.lists(texts, min_size=1, max_size=4))
@examples(150)
def test_the_engine_reads_exactly_the_values(shared_store: Store, values: list[str]) -> None:
    """For any input or service name: the panel's SQL contains exactly these values, in order."""
    ((found,),) = shared_store.select(expand(with_chosen(f"SELECT arrayMap(each -> hex(each), {chosen('v')})"), SPAN, {"v": values}))
    assert [bytes.fromhex(each).decode() for each in found] == values


@pytest.mark.parametrize(
    ("typed", "number"),
    [("20", 20), (" 0.10 ", 0.1), ("1e3", 1000), ("", 0), ("twenty", 0), ("1; DROP TABLE x", 0), ("$__all", 0), ("-5", -5), ("1,5", 0)],
)
def test_a_number_is_a_number_or_0(answer: Asked, typed: str, number: float) -> None:
    """A text box may contain any text."""
    assert answer(chosen_number("v"), typed) == number


def test_a_text_is_the_first_value_without_blanks(answer: Asked) -> None:
    """A text box has one value."""
    assert answer(chosen_text("v"), "  it's \\ me ") == "it's \\ me"
    assert answer(chosen_text("v"), ["a", "b"]) == "a"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("$__all", ["", "(none)", "a", "b'"]),
        ("", ["", "(none)", "a", "b'"]),
        (["a", "$__all"], ["", "(none)", "a", "b'"]),
        ([], ["", "(none)", "a", "b'"]),
        (["a", ""], ["", "(none)", "a", "b'"]),
        ("x$__all", []),
        (["(none)b", "(none)"], ["", "(none)"]),
        ("(none)a", []),
        (["b'", "(none)"], ["", "(none)", "b'"]),
        ("a=b&var-v=a", []),
        ("a", ["a"]),
        (["a", "b'"], ["a", "b'"]),
        ("(none)", ["", "(none)"]),
        ("A", []),
        ("a ", []),
        ("' OR 1=1 --", []),
    ],
)
def test_a_filter_keeps_the_chosen_values(shared_store: Store, value: str | Sequence[str], names: list[str]) -> None:
    """One, several, all, the empty name; never another value."""
    rows = f"(SELECT arrayJoin(['', '(none)', 'a', 'b\\'']) AS name) WHERE {filters({'v': 'name'})} ORDER BY name"
    assert [row[0] for row in shared_store.select(expand(with_chosen(f"SELECT name FROM {rows}"), SPAN, {"v": value}))] == names
