"""Tests of `legato doctor --emitters`: real emitters' captured traffic is listed with what is stored, what is ignored and why."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from helpers.builders.captures import capture
from helpers.builders.spans import native_span, request
from helpers.servers.committing import committing, send
from helpers.servers.reading import read_app
from helpers.servers.serving import served
from legato_ingest.cli.main import app
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

SENT = ("python-openllmetry-openai-plain", "python-otel-openai-v2-plain", "python-openllmetry-anthropic-plain", "python-openlit-plain")


@pytest.fixture
def senders(store: Store) -> Store:
    """A store that received these captures and a stream of Legato's own SDK."""
    own = request({"service.name": "shop"})
    native_span(own)
    with committing(store) as committer:
        send(committer, own)
        for name in SENT:
            for batch in capture(name).batches():
                committer.submit(batch).result(30)
    return store


def test_each_sender_is_named_with_what_it_cannot_say(senders: Store) -> None:
    """People and programs read the same: the numbers, the reasons, and the change that would mend it."""
    with served(read_app(load(), senders, Metrics())) as address:
        text = CliRunner().invoke(app, ["doctor", "--emitters", "--url", address], env={"COLUMNS": "100"})
        listed = CliRunner().invoke(app, ["doctor", "--emitters", "--url", address, "--json"])
    assert text.exit_code == listed.exit_code == 0, text.output
    found = {each["sender"]: each for each in json.loads(listed.output)}
    assert found["legato-python/0.1.0"]["stored"] == 1 and not found["legato-python/0.1.0"]["missing"]
    assert found["openllmetry/0.62.4"]["stored"] == 1 and found["openllmetry/0.62.4"]["timing"] == "each chunk"
    assert found["openllmetry/0.62.4"]["same_response"] == 1 and found["openllmetry/0.62.4"]["winners"] == ["anthropic-sdk/2.12.0"]
    assert found["otel-genai"]["reasons"] == ["streaming unknown"]
    for words in (
        "capture · openllmetry/0.62.4",
        "1 stored, 1 of a response",
        "nothing in it says that the response was streamed",
        "OTEL_SPAN_EVENT",
    ):
        assert words in text.output, text.output


def test_without_spans_it_says_so(store: Store) -> None:
    """An empty store is no list of nothing."""
    with served(read_app(load(), store, Metrics())) as address:
        result = CliRunner().invoke(app, ["doctor", "--emitters", "--url", address])
    assert "no spans in the last 24 h" in result.output
