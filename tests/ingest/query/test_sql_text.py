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


@pytest.mark.parametrize(
    "text",
    [
        "SELECT own.x FROM t AS own",
        "WITH own AS (SELECT 1) SELECT own.x FROM own",
        "SELECT (1, 2) AS `own`",
        "SELECT arrayMap(own -> own.1, [(5, 6)])",
        "SELECT arrayMap(`own_tenants` -> own_tenants.x, [(5, 6)])",
        "SELECT own.1",
    ],
)
def test_something_else_with_the_name_of_legatos_database_is_refused(text: str) -> None:
    """Without the database, a column of this name would be another one."""
    with pytest.raises(Refused, match="is the name of Legato's database"):
        read(text, "own")


def test_the_database_of_the_views_may_be_named() -> None:
    """It is the one that clients list for readers of one tenant."""
    assert read("SELECT own_tenants.t.x FROM own_tenants.t", "own", of_one_tenant=True).sql == "SELECT t.x FROM t"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count() FROM t FINAL, t AS b",
        "SELECT count() FROM t AS b INNER JOIN own.t FINAL USING (x)",
        "WITH t AS (SELECT 1) SELECT count() FROM t FINAL",
        "WITH t_final AS (SELECT 1) SELECT count() FROM t AS a FINAL",
    ],
)
def test_final_of_a_table_with_two_meanings_is_refused(text: str) -> None:
    """ClickHouse would read the view with merged rows for the other one, too. With aliases, or for all tenants, it is clear."""
    with pytest.raises(Refused, match="give it an alias"):
        read(text, "own", of_one_tenant=True)
    assert "FINAL" in read(text, "own").sql
    clear = "SELECT count() AS t FROM t AS a FINAL, t AS b WHERE x IN (SELECT x FROM t FINAL WHERE y) UNION ALL SELECT 1 FROM t"
    expected = (
        "SELECT count() AS t FROM `t_final` AS a , t AS b WHERE x IN (SELECT x FROM `t_final` AS t WHERE y) UNION ALL SELECT 1 FROM t"
    )
    assert read(clear, "own", of_one_tenant=True).sql == expected


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
        ("WITH min(x) AS (SELECT 1) SELECT x FROM min", "write AS in a SELECT"),
        ("SELECT x FROM streams AS max(x, y)", "write AS in a SELECT"),
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
