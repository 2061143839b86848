"""Random statements from the functions that the guard allows: nested calls over large arguments. It runs no statement.

A statement is an aggregate or a plain expression over a source of rows. Most of them fail in the engine's analysis, as those of any fuzzer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from legato_ingest.query.sql_functions import named

__all__ = ["statements"]

_LEAVES = {
    "string": (
        "repeat('ab', 500000)",
        "toString(number)",
        "repeat(toString(number), 1000)",
        "arrayStringConcat(arrayMap(i -> char(97 + i % 26), range(100000)))",
    ),
    "array": (
        "range(100000)",
        "arrayMap(i -> cityHash64(i, number), range(10000))",
        "arrayMap(i -> toString(i), range(10000))",
        "[number, 1]",
    ),
    "number": ("number", "1000000", "2147483647", "toUInt64(18446744073709551615)", "-1", "1e300", "nan", "toDecimal256(1, 70)"),
    "time": ("now()", "toDateTime(number)", "toDateTime64('2262-04-11 23:47:16', 9)"),
    "text": ("'%Y'", "'$.a'", "'a'", "'UTC'", "'(a|b)*c'", "'Array(String)'"),
}
_SOURCES = (
    "numbers(1)",
    "numbers(1000)",
    "numbers(1000000)",
    "numbers(1000000000)",
    "numbers(1000) a, numbers(1000) b",
    "streams, numbers(1000)",
)
_DEPTH_MAX = 3


def statements(names: Mapping[str, str], seed: int) -> Iterator[str]:
    """Yield statements without end. ``names``: the engine's spelling of each function by its name in lower case."""
    rng = random.Random(seed)
    plain = [names[name] for name in sorted(named("plain")) if name in names]
    aggregates = [names[name] for name in sorted(named("aggregate")) if name in names]
    while True:
        source = rng.choice(_SOURCES)
        if rng.random() < 0.3:
            called = _aggregate(rng, rng.choice(aggregates), plain)
        else:
            called = _call(rng, rng.choice(plain), plain, 0)
        yield f"SELECT ignore({called}) FROM {source} FORMAT Null"


def _aggregate(rng: random.Random, name: str, plain: list[str]) -> str:
    level = f"({rng.choice(('0.5', '10', '1000000', chr(39) + 'a' + chr(39)))})" if rng.random() < 0.3 else ""
    suffix = rng.choice(("", "", "", "Array", "If", "State", "ForEach", "Distinct"))
    arguments = [_expression(rng, plain, 2) for _ in range(rng.randint(1, 3))]
    return f"{name}{suffix}{level}({', '.join(arguments)})"


def _call(rng: random.Random, name: str, plain: list[str], depth: int) -> str:
    arguments = [_expression(rng, plain, depth + 1) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if name.startswith(("array", "map")) and rng.random() < 0.4:
        arguments.insert(0, rng.choice(("x -> x", "x -> [x]", "x -> x = 1", "x -> toString(x)")))
    return f"{name}({', '.join(arguments)})"


def _expression(rng: random.Random, plain: list[str], depth: int) -> str:
    if depth < _DEPTH_MAX and rng.random() < 0.35:
        return _call(rng, rng.choice(plain), plain, depth)
    return rng.choice(_LEAVES[rng.choice(tuple(_LEAVES))])
