"""Names as libraries spell them: classes, exceptions, members of enumerations, methods and addresses as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.otlp.emitters.spellings import error_name, finish_name, host_of, names_a_stream, port_of, said_of


@pytest.mark.parametrize(
    ("kind", "message", "found"),
    [
        ("<class 'openai.APIConnectionError'>", "", "openai.APIConnectionError"),
        ("Exception", "GeneratorExit()Traceback (most recent call last)", "GeneratorExit"),
        ("Exception", "ReadTimeout('Write a poem.')", "ReadTimeout"),
        ("Exception", "Write a poem (please)", "Exception"),
        ("ValueError", "Poem()", "ValueError"),
        ("", "GeneratorExit()", ""),
    ],
)
def test_an_error_has_the_name_of_its_type(kind: str, message: str, found: str) -> None:
    """Only a general type gives way, and of a message only the type at its begin is used."""
    assert error_name(kind, message) == found


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Connection error.", "Connection error."),
        ("Request failed\n  at fetch (timeout.js:1:1)", "Request failed"),
        ("A()Traceback (most recent call last):\n  read(timeout=9)\nA", "A()"),
        ("\nTraceback (most recent call last):\n  read(timeout=9)\nb.A: gone\n", "b.A: gone"),
        ("Traceback (most recent call last):\n  read(timeout=9)\n", ""),
        ('<AioRpcError of RPC that terminated with:\n\tstatus = StatusCode.CANCELLED\n\tdetails = ""\n>', "StatusCode.CANCELLED"),
        ("", ""),
    ],
)
def test_one_line_of_a_message_says_what_happened(message: str, said: str) -> None:
    """The lines of a traceback are source code, or nothing where the text was cut there."""
    assert said_of(message) == said


def test_a_finish_reason_has_the_name_of_the_member() -> None:
    """Other texts stay as they are."""
    assert [finish_name(text) for text in ("FinishReason.STOP", "stop", "MAX_TOKENS", "", "a.b")] == [
        "stop",
        "stop",
        "MAX_TOKENS",
        "",
        "a.b",
    ]


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("http://127.0.0.1:8000/v1/", "127.0.0.1", 8000),
        ("https://api.openai.com/v1", "api.openai.com", 0),
        ("api.mistral.ai:443", "api.mistral.ai", 443),
        ("api.mistral.ai", "api.mistral.ai", 0),
        ("http://[::1]:11434", "::1", 11434),
        ("http://[::1", "", 0),
        ("http://x:99999", "x", 0),
        ("", "", 0),
    ],
)
def test_an_address_is_split(address: str, host: str, port: int) -> None:
    """A broken URL has no host and no port."""
    assert (host_of(address), port_of(address)) == (host, port)


@given(st.text(max_size=40) | st.text("http:/[]@.:0123456789", max_size=20))
def test_any_text_is_read(text: str) -> None:
    """No text of an emitter is a fault."""
    assert host_of(text) is not None and 0 <= port_of(text) <= 65_535
    assert error_name(text, text) is not None and finish_name(text) is not None and names_a_stream(text) in (True, False)


@pytest.mark.parametrize(
    "name",
    ["OpenAI.stream_chat", "OpenAI.astream_complete", "bedrock.converse_stream", "ClientV2.chat_stream", "GenerateContentStream", "stream"],
)
def test_a_method_that_streams(name: str) -> None:
    """The last part of the name says that."""
    assert names_a_stream(name)


@pytest.mark.parametrize("name", ["ChatOpenAI", "StreamingAgent.write_history", "upstream_call", "OpenAI.chat", "", "chat m"])
def test_other_methods(name: str) -> None:
    """A word that only holds the letters is no sign."""
    assert not names_a_stream(name)
