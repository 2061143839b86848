"""The listed functions fail on no value of the kinds that they take, and what keeps the key on no row of the reader's own."""

from __future__ import annotations

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.errors import StoreError
from legato_ingest.query.key_constants import SHIFT_MAX_S
from legato_ingest.query.key_functions import ANY, FUNCTIONS, NOTHING, Kind, kind_of_type
from legato_ingest.storage import Store


def test_each_column_has_a_kind(store: Store) -> None:
    """A column of a type that is not known could be anything."""
    types = store.select("SELECT DISTINCT type FROM system.columns WHERE database = currentDatabase()")
    assert not [name for (name,) in types if kind_of_type(str(name)) in (ANY, NOTHING)]
    assert kind_of_type("Map(LowCardinality(String), Nullable(DateTime64(9, 'Etc/UTC')))") == Kind.TEXT | Kind.TIME | Kind.NULL
    assert kind_of_type("Variant(String, UInt8)") == kind_of_type("Decimal(9, 2)") == ANY


# Values of each kind, in groups of one type: a function that fails on one of them fails on all of its group.
VALUES = {
    Kind.TIME: [
        [f"{function}({digits}, 'UTC')" for digits in (0, 1_790_000_000 * scale, 4_294_967_295 * scale + scale - 1)]
        for function, scale in (("toDateTime", 1), ("fromUnixTimestamp64Milli", 10**3), ("fromUnixTimestamp64Nano", 10**9))
    ],
    Kind.FAR_TIME: [[f"fromUnixTimestamp64Nano({digits})" for digits in (-(2**63), -5, 0, 1_790_000_000 * 10**9, 2**63 - 1)]],
    Kind.INTEGER: [
        *([f"toUInt{bits}({each})" for each in (0, 1, 2 ** (bits - 1), 2**bits - 1)] for bits in (8, 32, 64)),
        [f"toInt64({each})" for each in (0, 1, -1, -(2**63), 2**63 - 1)],
    ],
    Kind.FLOAT: [["0.", "-1.5", "1e308", "inf", "-inf", "nan"]],
}
# Intervals, and times, up to the bounds of `key_constants`.
SECONDS = {"Nanosecond": 1e-9, "Microsecond": 1e-6, "Millisecond": 1e-3, "Second": 1, "Minute": 60, "Hour": 3600, "Day": 86_400}
LENGTHS = {unit: (1, 7, int(SHIFT_MAX_S / length_s)) for unit, length_s in SECONDS.items()} | {
    "Week": (1, 7, 3_000), "Month": (1, 7, 700), "Quarter": (1, 7, 230), "Year": (1, 7, 60),
}  # fmt: skip
OTHER_TIMES = (
    "now64(9)",
    "addYears(toDateTime64('2199-12-31', 0), 60)",
    "addYears(toDateTime64('1900-01-01', 3), -60)",
    "fromUnixTimestamp64Nano(-9223372036854775808)",
)
# Of functions with more arguments. The marked place is that of the value.
FORMS = {
    "tostartofinterval": [f"toStartOfInterval(@, toInterval{unit}({each}))" for unit, lengths in LENGTHS.items() for each in lengths],
    "datetrunc": [f"dateTrunc('{unit.lower()}', @)" for unit in LENGTHS],
    "datediff": [f"dateDiff('{unit.lower()}', @, {other})" for unit in LENGTHS for other in OTHER_TIMES],
    "todatetime64": [f"toDateTime64(@, {scale})" for scale in (0, 3, 9)],
    "formatdatetime": ["formatDateTime(@, '%F %T.%f')"],
    "totimezone": ["toTimezone(@, 'Asia/Tokyo')"],
    **{
        name: [each for other in ("0", "-1", "18446744073709551615", "0.1") for each in (f"{name}(@, {other})", f"{name}({other}, @)")]
        for name in ("plus", "minus", "multiply", "divide", "pow")
    },
    **{name: [f"{name}(@{digits})" for digits in ("", ", 2", ", 15", ", -15")] for name in ("round", "floor", "ceil")},
    "a near time": [f"@ {sign} {each}" for sign in ("=", "<") for each in OTHER_TIMES],
    **{name: [f"{name}(@, {each})" for each in OTHER_TIMES] for name in ("nullIf", "greatest", "least", "coalesce")},
    "has": [f"has([{each}], @)" for each in OTHER_TIMES],
    "cast": [f"CAST(@, '{kind}')" for kind in ("UInt8", "Int64", "Float32", "Nullable(UInt64)")],
    "cast to float": ["CAST(@, 'Float64')"],
    "cast to time": [f"CAST(@, '{kind}')" for kind in ("DateTime", "DateTime64(3)", "DateTime64(9)", "Date")],
    "intdiv": [f"{name}(@, {by})" for name in ("intDiv", "modulo") for by in (1, 7, 999_999_999)],
    "a literal": [f"@ {sign} {each}" for sign in ("=", "<") for each in ("0", "-1", "8589934591", "'x'", "'5'")],
}
TAKES = {
    **{name: takes for name, (takes, _) in FUNCTIONS.items() if takes != ANY},
    "cast": Kind.INTEGER,
    "cast to float": Kind.INTEGER | Kind.FLOAT | Kind.TIME,
    "cast to time": Kind.TIME,
    "intdiv": Kind.INTEGER,
    **dict.fromkeys(("a near time", "nullIf", "greatest", "least", "coalesce", "has"), Kind.TIME | Kind.FAR_TIME),
    "a literal": Kind.INTEGER | Kind.FLOAT | Kind.TIME | Kind.FAR_TIME,
}


@pytest.mark.parametrize("name", sorted(TAKES))
def test_total_functions_fail_on_no_value(store: Store, name: str) -> None:
    """For each kind that a function takes, with the extremes of its constants. What ClickHouse refuses fails without rows, too."""
    ((spelled,),) = store.select(f"SELECT any(name) FROM system.functions WHERE lower(name) = '{name}'")
    groups = [group for kind in TAKES[name] if kind in VALUES for group in VALUES[kind]]
    for form in FORMS.get(name) or [f"{spelled}(@)"]:
        for group in groups:
            values = " UNION ALL ".join(f"SELECT {value} AS x" for value in group)
            expression = form.replace("@", "x")
            if code := code_of(store, expression, f"({values})"):
                assert code == code_of(store, expression, f"({values}) WHERE materialize(0)"), (form, group)


# Of a tenant's own rows: all lengths of arrays, texts that are no patterns and no numbers, extremes of times and numbers, and NULL.
ROWS = """
INSERT INTO stream_revs (tenant, start_time, trace_id, received_at, service_name, rev, wire_bytes, dt_us, chunk_kind)
SELECT 'shop' AS tenant, toDateTime64(number = 5 ? 4294967295 : number * 3e8, 9, 'UTC'), toFixedString(toString(number), 16),
    toDateTime64(number * 3e8, 3), ['(', '%', 'a\\\\', '', '5', '[a'][number + 1], [0, 1, 5, 4294967294, 7, 9][number + 1],
    [NULL, 0, 1, 9223372036854775807, 18446744073709551615, 5][number + 1], range(number), range(number % 2)
FROM numbers(6)"""
LISTS = ("dt_us", "[rev]", "range(3)", "range(rev)", "arrayMap(x -> x, dt_us)")
TEXTS = "service_name|'('|'a*'|'[a'|'a**'|'^x(b)?$'|'a\\\\'|'\\\\d[.]'|concat('(', service_name)|'a{1,2000}'|'(?P<a'".split("|")
PLACES = ("0", "-1 * rev", "9223372036854775807", "-9223372036854775808", "400", "NULL", "wire_bytes")
AT = (
    *("now()", "'x'", "5", "8e18", "wire_bytes", "received_at"),
    *(
        "toDateTime64('2299-01-01', 0)",
        "addYears(now64(3), 260)",
        "'2299-01-01 00:00:00'",
        "service_name",
        "toString(rev)",
        "toDate(received_at)",
    ),
)
UNITS = ("toIntervalDay(1)", "toIntervalSecond(rev)", "INTERVAL 9223372036854775807 MILLISECOND", "INTERVAL 0 SECOND", "INTERVAL -1 DAY")
TYPES = ("String", "Nullable(String)", "UInt8", "Nullable(UInt8)", "Float64", "DateTime", "FixedString(1)", "UUID")
MAPS = "mapKeys(map(rev, 1)), mapValues(map(rev, 1))", "mapKeys(map(rev, 1)), mapValues(map(1, 1, 2, 2))"
EXPRESSIONS = (
    *(f"{name}({arguments})" for name in ("range", "arraySum", "arrayDifference") for arguments in LISTS),
    *(
        f"{name}((x, y) -> x > 0, {one}, {other})"
        for name in ("arrayMap", "arrayFilter", "arraySort", "arrayFirstIndex", "arraySum")
        for one, other in (("dt_us", "chunk_kind"), ("chunk_kind", "[1]"), ("dt_us", "arrayResize(chunk_kind, length(dt_us))"))
    ),
    *(f"arrayMap((x, y) -> x, {each})" for each in MAPS),
    *(f"{name}(dt_us, {place})" for name in ("arraySlice", "arrayElement", "arrayResize", "has", "indexOf") for place in PLACES),
    *(f"{name}(service_name, {text})" for name in ("match", "like", "extractAll") for text in TEXTS),
    *(f"replaceRegexpOne(service_name, {text}, {new})" for text in TEXTS[2:4] for new in ("'x'", "'\\\\9'", "service_name")),
    *(f"{name}({text}, service_name)" for name in ("splitByChar", "position") for text in TEXTS[:2]),
    *(f"substring(service_name, {place}, {place})" for place in PLACES),
    *(f"position(service_name, 'b', {place})" for place in PLACES),
    *(f"{name}({value}, {place})" for name in ("round", "floor") for value in ("rev", "exp(rev)") for place in PLACES),
    *(f"{name}(rev, {place})" for name in ("intDiv", "modulo", "multiply", "greatest", "nullIf") for place in PLACES),
    *(f"toStartOfInterval(start_time, {unit}{last})" for unit in UNITS for last in ("", ", 'x'", ", toDateTime64('2026-11-20', 9)")),
    *(f"{name}(start_time, {at})" for name in ("nullIf", "greatest", "less") for at in AT),
    *(f"start_time IN {at}" for each in AT for at in (f"({each})", f"(SELECT {each})")),
    *(f"has([{at}], start_time)" for at in AT),
    *(f"rev IN (SELECT {value} FROM stream_revs)" for value in ("start_time", "service_name", "wire_bytes", "exp(rev)", "-1 * rev")),
    *(f"service_name IN (SELECT {value} FROM stream_revs)" for value in ("rev", "dt_us", "trace_id", "service_name")),
    *(f"start_time IN (SELECT {value} FROM stream_revs)" for value in ("rev", "service_name", "received_at")),
    "(start_time, rev) IN (SELECT rev, start_time FROM stream_revs)",
    "(start_time, rev) IN (SELECT start_time, rev FROM stream_revs)",
    *(f"transform(start_time, [{at}], [5], 7)" for at in AT),
    *(f"CASE start_time WHEN {at} THEN 1 ELSE 2 END" for at in AT),
    *(f"dateDiff({unit}, start_time, {at})" for unit in ("'nanosecond'", "'x'", "service_name") for at in AT),
    *(f"CAST({value}, '{kind}')" for value in ("rev", "wire_bytes", "service_name", "start_time") for kind in TYPES),
    *(f"formatDateTime(start_time, {text})" for text in ("'%'", "'%Q'", "'%F'", "concat('%', service_name)")),
    *(f"{name}(start_time, {zone})" for name in ("toTimeZone", "toHour", "toDate", "toDateTime") for zone in ("'x'", "service_name")),
    *(f"lagInFrame(rev, {place}) OVER ()" for place in PLACES),
    *(f"{name}(dt_us, chunk_kind)" for name in ("sumMap", "argMaxArray", "argMaxForEach", "avgArray", "quantilesExactWeightedArray(0.5)")),
    *(f"{name}(dt_us, chunk_kind, rev > 1)" for name in ("sumMapIf", "argMaxArrayIf")),
)  # fmt: skip


def test_what_keeps_the_key_fails_on_no_row_of_ones_own(shared_store: Store) -> None:
    """A failure would show whether the row's granule was read, which depends on the rows of other tenants in it."""
    store = shared_store
    store.command("TRUNCATE TABLE stream_revs")
    store.command(ROWS)
    guard = guard_of(store)
    kept = 0
    for expression in EXPRESSIONS:
        try:
            sql = f"SELECT {expression} FROM stream_revs"
            by_key = guard.check(sql, {}, "shop").by_key
        except StoreError:
            continue
        if by_key:
            kept += 1
            if code := code_of_reader(store, sql):
                assert code == code_of_reader(store, f"{sql} WHERE rev = 99"), expression
    assert 100 < kept < len(EXPRESSIONS) - 100


def code_of(store: Store, expression: str, source: str) -> int:
    """Return the code of the error of an expression; 0 without one."""
    try:
        store.select(f"SELECT count() FROM (SELECT {expression} AS value FROM {source}) WHERE NOT ignore(value)")
    except StoreError as error:
        return error.code
    return 0


def code_of_reader(store: Store, sql: str) -> int:
    """Return the code of the error of a statement of one tenant; 0 without one."""
    try:
        store.query_bytes(sql, tenant="shop", by_key=True)
    except StoreError as error:
        return error.code
    return 0
