"""Tests of the check of a statement's canonical text, without an engine."""

from __future__ import annotations

import pytest

from legato_ingest.query.sql_text import ACCESS_DENIED, Refused, read, tokens


def test_the_format_and_the_parameters_are_returned() -> None:
    """The canonical text without its FORMAT clause, the format, and the names of the parameters."""
    found = read("SELECT {x:UInt8}, {xs:Array(String)} FORMAT `Null`")
    assert (found.sql, found.format, found.parameters) == ("SELECT {x:UInt8}, {xs:Array(String)}", "Null", frozenset(("x", "xs")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT own.t.x FROM own.t, `own`.u AS b FINAL WHERE own.t.x IN (own.z)", "SELECT t.x FROM t, u AS b FINAL WHERE t.x IN (z)"),
        ("SHOW CREATE TABLE own.x", "SHOW CREATE TABLE x"),
        ("SELECT own.x, own.* FROM own", "SELECT x, * FROM own"),
        ("SELECT t.own.x, 'own.x', own, own.own.x FROM own2.x", "SELECT t.own.x, 'own.x', own, own.x FROM own2.x"),
    ],
)
def test_the_name_of_legatos_database_is_removed(text: str, expected: str) -> None:
    """At the beginning of a name alone, and once."""
    assert read(text, "own").sql == expected


@pytest.mark.parametrize("text", ["SELECT own.x FROM t AS own", "WITH own AS (SELECT 1) SELECT own.x FROM own", "SELECT (1, 2) AS `own`"])
def test_an_alias_with_the_name_of_legatos_database_is_refused(text: str) -> None:
    """Without the database, a column of this alias would be another one."""
    with pytest.raises(Refused, match="the alias own"):
        read(text, "own")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT x FROM own.t FINAL WHERE t.x", "SELECT x FROM `t_final` AS t WHERE t.x"),
        ("SELECT x FROM t AS a FINAL, `u` FINAL", "SELECT x FROM `t_final` AS a , `u_final` AS `u`"),
        ("SELECT x FROM t LEFT JOIN u AS b FINAL ON 1", "SELECT x FROM t LEFT JOIN `u_final` AS b  ON 1"),
        ("SELECT x AS FINAL, final FROM t AS FINAL", "SELECT x AS FINAL, final FROM t AS FINAL"),
        ("SELECT 'FROM t FINAL', FINAL FROM numbers(1) FINAL", "SELECT 'FROM t FINAL', FINAL FROM numbers(1) FINAL"),
    ],
)
def test_final_names_the_view_with_merged_rows(text: str, expected: str) -> None:
    """For a reader of one tenant; FINAL after anything but a table is left to ClickHouse."""
    assert read(text, "own", of_one_tenant=True).sql == expected
    assert read(text, "own").sql == text.replace("own.", "")


@pytest.mark.parametrize(
    "text", ["SELECT 'it''s', 'a\\'b'", "SELECT `größe` -> 1", "SELECT {x:FixedString(16)}, 1.5e3, (1, 2).1", "SELECT '\u2028\n'"]
)
def test_tokens_joined_are_the_text(text: str) -> None:
    """The lexer drops nothing and adds nothing."""
    assert "".join(part for _, part in tokens(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 1 -- x", "start a comment"),
        ("SELECT 1 /* x", "start a comment"),
        ("SELECT $$x$$", "cannot read"),
        ("SELECT 'x", "cannot read"),
        ("SELECT 1 INTO OUTFILE 'x'", "writes a file"),
        ("SELECT 1 into outfile 'x'", "writes a file"),
        ("SELECT 1 FROM streams prewhere x", "before the filter of a tenant"),
        ("SELECT file('x')", "function file"),
        ("SELECT `file`('x')", "function file"),
        ("SHOW TABLES WHERE x", "without expressions"),
        ("SHOW TABLES LIMIT (1)", "without expressions"),
        ("SELECT {x:Identifier}", "type Identifier"),
        ("SELECT {x:Array(Identifier)}", "bind values only"),
        ("SELECT `a\\b`", "escape"),
        ("SELECT `a\nb`", "control character"),
        ("SELECT 1;", "cannot read"),
    ],
)
def test_other_texts_are_rejected(text: str, message: str) -> None:
    """Comments, files, expressions of SHOW, parameters that could be names, and characters that the lexer has no token for."""
    with pytest.raises(Refused, match=message) as raised:
        read(text)
    assert raised.value.code == ACCESS_DENIED
