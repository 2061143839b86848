"""Decides whether a statement only reads, by ClickHouse's own parser.

One idea: nothing about a statement is guessed from its text. ClickHouse parses it as a parameter, so it cannot break out, and prints it
back in one canonical line; that line is what is judged and what is run. Two readings must both agree: every token of the line
(`sql_text`) and every node of its syntax tree (`sql_tree`). ``readonly = 1``, which the store's read handles have, is the third: alone it
is not enough, as it lets INTO OUTFILE write and `file()` read. It runs none of the statements that it judges.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from legato_ingest.errors import StoreRefused
from legato_ingest.query import sql_text, sql_tree
from legato_ingest.query.sql_text import CanonicalText, Refused

__all__ = ["Guard", "Parameters", "Refused", "bound"]

Parameters = Mapping[str, Any]
Run = Callable[[str, Parameters], bytes]

_CACHE_MAX = 1024
_CACHED_TEXT_MAX = 16_384
_TEXT_MAX = 262_144
# The engine's syntax errors end with the statement that we asked it with.
_OUR_OWN_SCOPE = re.compile(r":? In scope SELECT formatQuerySingleLine\(.*\)\.? \((\w+)\)", re.DOTALL)


class Guard:
    """Checks statements with ``run(sql, parameters) -> TSVRaw``, which asks ClickHouse to parse; remembers the last 1,024 answers.

    The answer holds for every value of the parameters: they are values, never names, and only those that the statement names are bound
    (``bound``), as a driver that finds a parameter without a place in the text may format it into the text instead.
    """

    def __init__(self, run: Run, own: str = "default") -> None:
        self._run, self._own = run, own
        self._seen: OrderedDict[str, CanonicalText] = OrderedDict()
        self._lock = Lock()

    def check(self, text: str, parameters: Parameters) -> CanonicalText:
        """What to run for this text. Raises ``Refused``, or ``StoreRefused`` with ClickHouse's own error."""
        with self._lock:
            if text in self._seen:
                self._seen.move_to_end(text)
                return self._seen[text]
        statement = self._judge(text, parameters)
        if len(text) <= _CACHED_TEXT_MAX:
            with self._lock:
                self._seen[text] = statement
                while len(self._seen) > _CACHE_MAX:
                    self._seen.popitem(last=False)
        return statement

    def _judge(self, text: str, parameters: Parameters) -> CanonicalText:
        if len(text) > _TEXT_MAX:
            raise StoreRefused(f"Code: 62. DB::Exception: the statement has {len(text)} characters, at most {_TEXT_MAX} are taken", 62)
        if "\0" in text:
            raise Refused("the statement holds a zero byte")
        statement = sql_text.read(self._canonical(text))
        # The format named here is ours; it stands in the tree as one more name and keeps the statement's end from reading as anything else.
        tree = self._run(f"EXPLAIN AST {statement.sql}", bound(statement, parameters))
        sql_tree.check(tree.decode("utf-8", "replace"), self._own)
        return statement

    def _canonical(self, text: str) -> str:
        """The statement in one line. The parser refuses several statements, and what follows an unmatched parenthesis."""
        try:
            line = self._run("SELECT formatQuerySingleLine({statement:String})", {"statement": text})
        except StoreRefused as error:
            raise StoreRefused(_OUR_OWN_SCOPE.sub(r" (\1)", str(error)), error.code) from None
        return line.decode("utf-8", "replace").removesuffix("\n")


def bound(statement: CanonicalText, parameters: Parameters) -> Parameters:
    """Those of the parameters that the statement names."""
    return {name: parameters[name] for name in statement.parameters if name in parameters}
