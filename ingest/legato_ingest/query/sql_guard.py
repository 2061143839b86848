"""The guard of the read endpoint: it accepts statements that only read, and rejects all others.

ClickHouse's own parser reads each statement. The statement is passed to it as a parameter, so it cannot break out, and comes back as one
canonical line; that line is checked and that line is run. Two checks must both accept it: of every token of the line (``sql_text``) and of
every node of its syntax tree (``sql_tree``). The third barrier is ``readonly = 1`` on the store's read handles; alone it is not enough,
because it lets INTO OUTFILE write and ``file()`` read. This module runs none of the statements that it checks.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused
from legato_ingest.query import sql_text, sql_tree
from legato_ingest.query.key_ranges import KeyColumns, Known, with_key
from legato_ingest.query.sql_template import Generalized, Template, generalize, template
from legato_ingest.query.sql_text import CanonicalText, Refused
from legato_ingest.storage.tenant_views import FINAL_VIEW, Column, key_columns

__all__ = ["Guard", "Parameters", "Refused", "bound"]

Parameters = Mapping[str, Any]
Run = Callable[[str, Parameters, str], bytes]
# A statement's text, and the tenant that reads.
_Key = tuple[str, str]

_CACHE_MAX, _CACHE_BYTES_MAX = 8192, 32 * 2**20
_CACHED_TEXT_MAX = 32_768
_TEXT_MAX = 262_144
_COLUMNS = "SELECT table, name, type, is_in_sorting_key FROM system.columns WHERE database = currentDatabase() ORDER BY table, position"
# ClickHouse ends its syntax errors with the statement that the guard wrapped around the reader's.
_WRAPPED_SCOPE = re.compile(r":? In scope SELECT formatQuerySingleLine\(.*\)\.? \((\w+)\)", re.DOTALL)


class Guard:
    """Checks statements with ``run(sql, parameters, tenant) -> TSVRaw``, which parses them in ClickHouse.

    ``own``: the database of Legato's tables. A statement may name it; the text to run does not (``sql_text.read``).

    The last 8,192 accepted statements, of 32 MiB at most, are cached by their text, without the numbers of a Grafana time range
    (``sql_template``), so a dashboard's refresh costs no call of ``run``. Rejections are not cached: each is decided on the statement
    itself.

    Whether a statement is accepted does not depend on the values of its parameters: they are values, never names. The entries of one
    tenant's readers hold for that tenant alone, because the time of the first answer would show which statements other tenants run. The
    tables of such a reader are read by their primary key where it is certain what the statement asks for (``key_ranges``). Only
    parameters that the statement names are bound (``bound``), because a driver may format a parameter without a place in the text into
    the text instead.
    """

    def __init__(self, run: Run, own: str = "default") -> None:
        self._run, self._own = run, own
        self._columns: tuple[KeyColumns, Known] = {}, Known()
        # None: this text with stand-ins has no template; statements of this form are cached by their full text.
        # With the size of each entry when it was added: a text grows when its UTF-8 is asked for.
        self._cache: OrderedDict[_Key, tuple[CanonicalText | Template | None, int]] = OrderedDict()
        self._cache_bytes = 0
        self._lock = Lock()

    def check(self, text: str, parameters: Parameters, tenant: str = ALL_TENANTS) -> CanonicalText:
        """Return the canonical text to run for a tenant. Raises ``Refused``, or ``StoreRefused`` with ClickHouse's own error."""
        general = generalize(text) if len(text) <= _CACHED_TEXT_MAX else None
        if general is not None:
            found = self._template(general, parameters, tenant)
            if found is not None:
                return found.fill(general.numbers)
        key = text, tenant
        cached = self._cached(key)
        if isinstance(cached, CanonicalText):
            return cached
        statement = self._with_key(self._judge(text, parameters, tenant), tenant)
        self._keep(key, statement)
        return statement

    def _template(self, general: Generalized, parameters: Parameters, tenant: str) -> Template | None:
        """The template of a statement with stand-ins; None when it has none, or is rejected in this form."""
        key = general.text, tenant
        cached = self._cached(key)
        if cached is not _MISSING:
            return cached if isinstance(cached, Template) else None
        try:
            statement = self._with_key(self._judge(general.text, parameters, tenant), tenant)
            found = template(statement, len(general.numbers))
        except StoreRefused:
            # The statement itself is checked next: its error names its own numbers.
            return None
        self._keep(key, found)
        return found

    def _cached(self, key: _Key) -> object:
        with self._lock:
            if key not in self._cache:
                return _MISSING
            self._cache.move_to_end(key)
            return self._cache[key][0]

    def _keep(self, key: _Key, value: CanonicalText | Template | None) -> None:
        if sum(map(len, key)) > _CACHED_TEXT_MAX:
            return
        with self._lock:
            size = _size_bytes(key, value)
            self._cache_bytes += size - self._cache.pop(key, (None, 0))[1]
            self._cache[key] = value, size
            while len(self._cache) > _CACHE_MAX or self._cache_bytes > _CACHE_BYTES_MAX:
                self._cache_bytes -= self._cache.popitem(last=False)[1][1]

    def _judge(self, text: str, parameters: Parameters, tenant: str) -> CanonicalText:
        if len(text) > _TEXT_MAX:
            raise StoreRefused(f"Code: 62. DB::Exception: the statement has {len(text)} characters, at most {_TEXT_MAX} are accepted", 62)
        if "\0" in text:
            raise Refused("the statement holds a zero byte")
        of_one_tenant = tenant != ALL_TENANTS
        statement = sql_text.read(self._canonical(text, tenant), self._own, of_one_tenant=of_one_tenant)
        # The store appends a FORMAT. It is one more name in the tree, and keeps the statement's end from being read as anything else.
        tree = self._run(f"EXPLAIN AST {statement.sql}", bound(statement, parameters), tenant).decode("utf-8", "replace")
        sql_tree.check(tree, of_one_tenant=of_one_tenant)
        return replace(statement, has_own_functions=sql_tree.names_lambda(tree)) if of_one_tenant else statement

    def _with_key(self, statement: CanonicalText, tenant: str) -> CanonicalText:
        """The statement as it is run for a tenant. Functions of the reader's could be applied to the key."""
        if tenant == ALL_TENANTS or statement.has_own_functions:
            return statement
        if not self._columns[0]:
            self._columns = self._read_columns()
        sql = with_key(statement.sql, *self._columns, statement.subqueries)
        return statement if sql == statement.sql else replace(statement, sql=sql, without_key=statement.sql)

    def _read_columns(self) -> tuple[KeyColumns, Known]:
        """The columns that may be of a primary key, with their types, and all names. A table that is made later is not known."""
        rows = [row.split("\t") for row in self._run(_COLUMNS, {}, ALL_TENANTS).decode().splitlines()]
        columns = [Column(table, "", name, type_name, "", is_in_key) for table, name, type_name, is_in_key in rows]
        found = key_columns(columns)
        tables = {column.table for column in columns}
        known = Known(tables | {f"{table}{FINAL_VIEW}" for table in tables}, {column.name for column in columns})
        return found | {f"{table}{FINAL_VIEW}": of_table for table, of_table in found.items()}, known

    def _canonical(self, text: str, tenant: str) -> str:
        """The statement in one line. The parser rejects several statements, and text after an unmatched parenthesis."""
        try:
            line = self._run("SELECT formatQuerySingleLine({statement:String})", {"statement": text}, tenant)
        except StoreRefused as error:
            raise StoreRefused(_WRAPPED_SCOPE.sub(r" (\1)", str(error)), error.code) from None
        return line.decode("utf-8", "replace").removesuffix("\n")


_MISSING = object()


def _size_bytes(key: _Key, value: CanonicalText | Template | None) -> int:
    """Return the memory of an entry of the cache."""
    texts, statement = [*key], value.checked if isinstance(value, Template) else value
    if statement is not None:
        texts += (statement.sql, statement.without_key or "", *statement.parameters, *statement.subqueries)
    if isinstance(value, Template):
        texts += (*value.sql.texts, *(value.without_key.texts if value.without_key is not None else ()))
    # Twice for the UTF-8 of a text, which may be kept beside it.
    return 2 * sum(map(sys.getsizeof, texts))


def bound(statement: CanonicalText, parameters: Parameters) -> Parameters:
    """Return the parameters that the statement names."""
    return {name: parameters[name] for name in statement.parameters if name in parameters}
