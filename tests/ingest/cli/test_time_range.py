"""`--since`, `--from` and `--to`: which times they accept, and that the range selects streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
import typer

from helpers.servers.reading import open_store, reading, stream, streams_in
from helpers.servers.serving import legato
from legato_ingest.cli import time_range as module
from legato_ingest.cli.time_range import moment_of, time_range
from legato_ingest.reports.time_range import TimeRange


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T12:05",
        "2026-11-21 12:05:00",
        "2026-11-21T12:05Z",
        "2026-11-21T13:05+01:00",
        "2026-11-21T07:05:00-05:00",
        " 2026-11-21T12:05 ",
    ],
)
def test_a_time_is_utc_unless_it_has_a_zone(text: str) -> None:
    """ISO 8601, with a space too."""
    assert moment_of(text, "--from") == int(datetime(2026, 11, 21, 12, 5, tzinfo=UTC).timestamp()) * 10**9


def test_local_is_the_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word follows the time; a time without a date is today."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment_of("2026-11-21T21:05 local", "--to") == moment_of("2026-11-21T12:05", "--to")
        today = datetime.now().astimezone()
        assert moment_of("9:30 local", "--to") == round(today.replace(hour=9, minute=30, second=0, microsecond=0).timestamp()) * 10**9
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (
        moment_of("9:30:00", "--to")
        == moment_of("09:30", "--to")
        == round(datetime.now(UTC).replace(hour=9, minute=30, second=0, microsecond=0).timestamp()) * 10**9
    )


def test_a_time_of_today_may_have_a_zone() -> None:
    """Today is the date in that zone."""
    for text, hours in (("14:05Z", 0), ("14:05+01:00", 1), ("14:05:00-0930", -9.5)):
        there = datetime.now(timezone(timedelta(hours=hours)))
        assert moment_of(text, "--to") == round(there.replace(hour=14, minute=5, second=0, microsecond=0).timestamp()) * 10**9


def test_after_midnight_a_time_of_the_day_before_needs_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today it is in the future, so the option itself is refused; a range may end in the future."""

    class Midnight(datetime):
        """Five minutes after midnight."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime(2026, 11, 30, 0, 5, tzinfo=UTC).astimezone(tz)

    monkeypatch.setattr(module, "datetime", Midnight)
    for option in ("--from", "--at"):
        with pytest.raises(typer.BadParameter, match="2026-11-30 23:59:00 UTC is in the future: give the date") as refused:
            moment_of("23:59", option)
        assert refused.value.param_hint == option and moment_of("00:04", option) < moment_of("23:59", "--to")
    assert moment_of("2026-11-29T23:59", "--from") < moment_of("00:04", "--to")


def test_times_beyond_those_of_the_store_are_its_first_and_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local time of the first or the last year may have none in UTC: that is an error, not a traceback."""
    assert moment_of("0001-01-01", "--from") == 0 and moment_of("9999-12-31T23:59", "--to") == 2**63 - 1
    for zone, text in (("Asia/Tokyo", "0001-01-01T00:00 local"), ("America/New_York", "9999-12-31T23:59 local")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            with pytest.raises(typer.BadParameter, match="is no time"):
                moment_of(text, "--from")
        finally:
            monkeypatch.undo()
            time.tzset()


@pytest.mark.parametrize(
    "text", ["yesterday", "25:00", "2026-13-01", "2026-11-21T12:05Z local", "14:05Z local", "14:05+99:00", "local", "1h"]
)
def test_other_texts_are_refused(text: str) -> None:
    """The message says what was given and what is expected."""
    with pytest.raises(typer.BadParameter, match="is no time|has two zones"):
        moment_of(text, "--from")


def test_a_range_in_words() -> None:
    """It follows a noun, as in "streams in the last hour"."""
    assert str(time_range("1h", "", "")) == " in the last hour" and str(time_range("all", "", "")) == ""
    assert str(time_range("1h", "2026-11-21T12:05", "2026-11-21T12:35")) == " from 2026-11-21 12:05:00 to 2026-11-21 12:35:00 UTC"
    assert str(time_range("1h", "2026-11-21T12:05", "")) == " since 2026-11-21 12:05:00 UTC"
    assert str(time_range("1h", "", "2026-11-21T12:05")) == " before 2026-11-21 12:05:00 UTC"
    assert time_range("1h", "", "") == TimeRange(3_600) and time_range("1h", "2026-11-21", "").since_s == 0
    with pytest.raises(typer.BadParameter, match="not after"):
        time_range("1h", "2026-11-21T12:05", "2026-11-21T12:05")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The read endpoint over two streams: one started 10 minutes ago, one 50 minutes ago; both froze."""
    with open_store(tmp_path_factory.mktemp("range") / "store") as store:
        streams_in(store, [stream((20, 700, 20), age_s=600), stream((20, 900, 20), age_s=3_000)])
        with reading(store) as found:
            yield found


@pytest.mark.parametrize("command", ["report", "streams", "blame", "incident"])
def test_a_range_selects_streams(url: str, command: str) -> None:
    """The older stream alone, in every command that reads a range."""
    begin, end = (f"{datetime.fromtimestamp(time.time() - 60 * ago, UTC):%Y-%m-%dT%H:%M:%S}" for ago in (55, 45))
    done = legato(command, "--from", begin, "--to", end, *([] if command == "incident" else ["--json"]), environ={"LEGATO_READ_URL": url})
    assert done.returncode == 0, done.stderr
    if command == "incident":
        assert "1 of 1" in done.stdout and "900 ms" in done.stdout and "700 ms" not in done.stdout
        return
    found = json.loads(done.stdout)
    if command == "report":
        assert sum(group["streams"] for group in found["groups"]) == 1
    elif command == "streams":
        assert [row["gap_max_us"] for row in found] == [900_000]
    else:
        assert found["stalls_250ms"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "--vantage", "cleint"), "expected one of engine, server, gateway, client, screen"),
        (("streams", "--outcome", "cancelled"), "expected one of"),
        (("blame", "--from", "noon"), "is no time"),
        (("incident", "--from", "00:00", "--to", "00:00"), "not after --from"),
        (("incident", "--from", "2200-01-01"), "Invalid value for --from: it is in the future"),
    ],
)
def test_wrong_values_are_refused(url: str, arguments: tuple[str, ...], message: str) -> None:
    """With status 2 and the expected form, instead of an empty answer."""
    done = legato(*arguments, environ={"LEGATO_READ_URL": url, "COLUMNS": "200"})
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_version() -> None:
    """One line with the version of the distribution."""
    assert legato("--version").stdout.startswith("legato 0.")
