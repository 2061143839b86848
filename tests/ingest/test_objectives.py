"""The objectives: the file, the patterns in all three places that compare them, and what a reader sees of them."""

from __future__ import annotations

import pathlib
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from helpers.repo.repository import ROOT
from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, SLO_TARGET
from legato_ingest.errors import SettingsError
from legato_ingest.jobs.admin_commands import apply_objectives
from legato_ingest.objectives import DEFAULT, Objective, like, load
from legato_ingest.settings import load as load_settings
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import applied, apply

FILE = """
[[objective]]
name = "voice"
service = "voice-*"
target = 0.999
gap_limit_ms = 250

[[objective]]
name = "eu"
tenant = "eu"
model = "llama-3.1_8b"
first_output_limit_ms = 800.5
"""


def objectives(tmp_path: pathlib.Path, text: str) -> tuple[Objective, ...]:
    """Return the objectives with this file."""
    path = tmp_path / "objectives.toml"
    path.write_text(text, encoding="utf-8")
    return load(load_settings(objectives_file=path, slo_gap_ms=500))


def test_the_file_is_read_in_order(tmp_path: pathlib.Path) -> None:
    """What an objective does not set is that of the default, which is the last one."""
    voice, eu, default = objectives(tmp_path, FILE)
    assert voice == Objective(name="voice", service="voice-*", target=0.999, gap_limit_ms=250, first_output_limit_ms=SLO_FIRST_OUTPUT_MS)
    assert eu == Objective(name="eu", tenant="eu", model="llama-3.1_8b", gap_limit_ms=500, first_output_limit_ms=800.5)
    assert default == Objective(name=DEFAULT, gap_limit_ms=500)
    assert (eu.gap_limit_us, eu.first_output_limit_us, default.target) == (500_000, 800_500, SLO_TARGET)


def test_the_file_of_the_containers_and_its_example_are_valid(tmp_path: pathlib.Path) -> None:
    """As shipped it has the default alone; without the comment signs the example is an objective."""
    text = (ROOT / "deploy" / "objectives" / "objectives.toml").read_text(encoding="utf-8")
    assert [each.name for each in objectives(tmp_path, text)] == [DEFAULT]
    example = "\n".join(line[2:] for line in text.partition("#\n")[2].splitlines())
    assert [each.name for each in objectives(tmp_path, example)] == ["voice", DEFAULT]


def test_without_a_file_there_is_the_default() -> None:
    """It has the limits of the settings."""
    assert load(load_settings()) == (Objective(name=DEFAULT),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[objective", "is not valid TOML"),
        ("x = 1", "has x, expected [[objective]] tables and nothing else"),
        ("objective = 1", "expected [[objective]] tables"),
        ("[[objective]]\ntarget = 0.9", "objective 1: 'name' is missing"),
        ("[[objective]]\nname = 'a'\ntarget = 99", "objective 1: 'target' has value 99: Input should be less than or equal to 0.999999"),
        ("[[objective]]\nname = 'a'\ngap_ms = 9", "objective 1: 'gap_ms' is not a key of an objective, expected name, tenant, service"),
        ("[[objective]]\nname = 'a'\ngap_limit_ms = 0", "'gap_limit_ms' has value 0: Input should be greater than or equal to 0.001"),
        (
            "[[objective]]\nname = 'a'\ngap_limit_ms = 1e-9",
            "'gap_limit_ms' has value 1e-09: Input should be greater than",
        ),
        ("[[objective]]\nname = 'a'\ngap_limit_ms = inf", "'gap_limit_ms' has value inf: Input should be"),
        ("[[objective]]\nname = 'a'\nfirst_output_limit_ms = nan", "'first_output_limit_ms' has value nan: Input should be"),
        ("[[objective]]\nname = 'a'\nfirst_output_limit_ms = 1e30", "'first_output_limit_ms' has value 1e+30: Input should be less than"),
        ("[[objective]]\nname = 'a b'", "'name' has value 'a b'"),
        ("[[objective]]\nname = 'a'\nmodel = 7", "'model' has value 7"),
        (
            "[[objective]]\nname = 'a'\ntenant = 'shop-*'",
            "objective 1: 'tenant' has value 'shop-*': expected the exact name of a tenant, or '*' for all; only service, model and route",
        ),
        ("[[objective]]\nname = 'a'\ntenant = '**'", "'tenant' has value '**': expected the exact name of a tenant"),
        ("[[objective]]\nname = 'a'\n[[objective]]\nname = 'a'", "the name 'a' occurs twice"),
        ("[[objective]]\nname = 'default'", "the name 'default' occurs twice; the last objective, which Legato adds, is named 'default'"),
        ("".join(f"[[objective]]\nname = 'n{number}'\n" for number in range(101)), "has 101 objectives, expected 100 at most"),
    ],
)
def test_a_wrong_file_is_one_clear_message(tmp_path: pathlib.Path, text: str, problem: str) -> None:
    """It names the setting, the file, the place and what was expected."""
    with pytest.raises(SettingsError, match=re.escape(problem)) as raised:
        objectives(tmp_path, text)
    assert str(raised.value).startswith(f"LEGATO_OBJECTIVES_FILE: {tmp_path}")


def test_a_missing_file_is_one_clear_message(tmp_path: pathlib.Path) -> None:
    """Neither a silent default nor a traceback."""
    with pytest.raises(SettingsError, match="No such file or directory; create the file, or unset LEGATO_OBJECTIVES_FILE"):
        load(load_settings(objectives_file=tmp_path / "none.toml"))


def test_an_empty_store_has_the_defaults_of_the_definitions(shared_store: Store) -> None:
    """Also the view `streams`, which reads the same rows."""
    assert applied(shared_store) == ()
    ((name, service, *figures),) = shared_store.select(
        "SELECT name, service_like, target, gap_limit_us, first_output_limit_us FROM current_objectives"
    )
    assert (name, service, figures) == (DEFAULT, "%", [SLO_TARGET, 1_000 * SLO_GAP_MS, 1_000 * SLO_FIRST_OUTPUT_MS])


def test_a_version_is_written_only_when_it_differs(store: Store) -> None:
    """It replaces the one before as a whole."""
    both = [Objective(name="a", service="x_*", tenant="t", target=0.5), Objective(name=DEFAULT)]
    assert apply(store, both) and not apply(store, both) and applied(store) == tuple(both)
    assert apply(store, both[1:]) and applied(store) == (both[1],)
    assert store.select("SELECT count(), uniqExact(applied_at) FROM objectives") == [(3, 2)]


def test_a_limit_with_a_fraction_of_a_microsecond_is_no_change(store: Store) -> None:
    """At each start: the store has whole microseconds."""
    objectives = [Objective(name="third", gap_limit_ms=333.33333), Objective(name="default")]
    assert [apply(store, objectives) for _ in range(3)] == [True, False, False]


def test_applying_without_a_file_removes_nothing(store: Store, tmp_path: pathlib.Path) -> None:
    """A shell without the setting of the server is a likely mistake; an empty file is not."""
    apply(store, [Objective(name="a"), Objective(name=DEFAULT)])
    with pytest.raises(SettingsError, match="no LEGATO_OBJECTIVES_FILE, and 2 objectives apply"):
        apply_objectives(load_settings(), store)
    empty = tmp_path / "objectives.toml"
    empty.touch()
    assert apply_objectives(load_settings(objectives_file=empty), store)["changed"] and len(applied(store)) == 1
    assert not apply_objectives(load_settings(), store)["changed"]


def test_a_tenant_sees_the_objectives_of_all_and_its_own(store: Store) -> None:
    """And not the names of another tenant's services."""
    apply(store, [Objective(name=name, tenant=tenant) for name, tenant in (("a", "eu"), ("b", "us"), (DEFAULT, "*"))])
    sql = "SELECT DISTINCT name FROM current_objectives ORDER BY name"
    seen = {tenant: store.query_bytes(sql, tenant=tenant).decode().split() for tenant in ("eu", "us", "*")}
    assert seen == {"eu": ["a", "default"], "us": ["b", "default"], "*": ["a", "b", "default"]}


texts = st.text("ab_%\\*.é\n", max_size=6)


@examples(60)
@given(pairs=st.lists(st.tuples(texts.filter(bool), texts), min_size=1, max_size=40))
def test_patterns_mean_the_same_everywhere(shared_store: Store, pairs: list[tuple[str, str]]) -> None:
    """In the counters' Arrow functions and in the view's SQL: only `*` is special, and it stands for any characters."""
    expected = [bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL)) for pattern, text in pairs]
    assert [pc.match_like(pa.array([text]), like(pattern))[0].as_py() for pattern, text in pairs] == expected
    ((view,),) = shared_store.select("SELECT create_table_query FROM system.tables WHERE name = 'current_objectives' LIMIT 1")
    (expression,) = re.findall(r"(replaceAll\(.*?'%'\)) AS service_like", str(view))
    ((found,),) = shared_store.select(
        f"SELECT groupArray(toBool(pair.2 LIKE {expression})) FROM"
        " (SELECT arrayJoin(arrayZip({patterns:Array(String)}, {texts:Array(String)})) AS pair, pair.1 AS service)",
        {"patterns": [pattern for pattern, _ in pairs], "texts": [text for _, text in pairs]},
    )
    assert [bool(each) for each in found] == expected
