"""A replacement for a ClickHouse server in tests: chDB's engine behind ClickHouse's HTTP interface, with writing.

    twin.py FOLDER PORT

chDB has the same engine as a server, so tables, SQL and errors are ClickHouse's, and clickhouse-connect works with the twin unchanged. The
twin has no users, no clusters and no limits of users, and is one process on one folder. TWIN_PROFILE (JSON) has the settings of the only
profile. Only tests use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import anyio.to_thread
import clickhouse_connect
import uvicorn
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from fastapi import FastAPI, Request, Response

__all__ = ["create_app"]

_INSERT = re.compile(r"\s*INSERT\s+INTO\s+(?P<into>.+?)\s+FORMAT\s+(?P<format>\w+)\s*", re.IGNORECASE | re.DOTALL)
_INSERT_AND_DATA = re.compile(rb"(?P<statement>\s*INSERT\s+INTO\s[^\n]+?\sFORMAT\s+\w+)\n(?=.)", re.IGNORECASE | re.DOTALL)
_FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_RESULT = re.compile(r"\s*(SELECT|WITH|SHOW|DESCRIBE|EXISTS|EXPLAIN)\b", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)")
# URL parameters that are not settings, and settings that belong to the transport or need a real server.
_NO_SETTINGS = re.compile(
    r"query|database|query_id|session_.*|param_.*|client_protocol_version|default_format|user|password|compress|decompress|"
    r"http_.*|enable_http_compression|send_progress.*|wait_end_of_query|buffer_size|role|cancel_http_readonly.*|date_time_input_format"
)


class _Encoded:
    """A query parameter's value, encoded as the client sent it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class _Engine:
    """Handles of one embedded store, pooled by the settings of the requests."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._profile: dict[str, str] = json.loads(os.environ.get("TWIN_PROFILE", "{}"))
        self._idle: dict[frozenset[tuple[str, str]], list[Client]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def handle(self, settings: Mapping[str, str], database: str) -> Iterator[Client]:
        """Yield a handle with these settings in this database.

        After a failure the handle is closed, as it keeps the partial output of the failed query.
        """
        key = frozenset({**settings, "database": database}.items())
        with self._lock:
            idle = self._idle.setdefault(key, [])
            client = idle.pop() if idle else None
        if client is None:
            client = clickhouse_connect.get_client(interface="chdb", path=str(self._folder))
            client.command(f"USE `{database}`")
            for name, value in sorted({**self._profile, **settings}.items(), key=lambda each: each[0] == "readonly"):
                client.command(f"SET {name} = {value if value[:1] == '{' else repr(value)}")
        try:
            yield client
        except BaseException:
            client.close()
            raise
        with self._lock:
            idle.append(client)

    def run(self, sql: str, data: bytes, settings: Mapping[str, str], database: str, parameters: Mapping[str, Any]) -> bytes:
        """Run a statement in a database and return its result in the format that the statement names (default TabSeparated)."""
        insert = _INSERT.fullmatch(sql)
        with self.handle(settings, database) as client:
            if insert and data:
                with tempfile.NamedTemporaryFile() as file:
                    file.write(data)
                    file.flush()
                    client.command(f"INSERT INTO {insert['into']} FROM INFILE '{file.name}' FORMAT {insert['format']}")
                return b""
            if not _RESULT.match(sql):
                client.command(sql, parameters=dict(parameters))
                return b""
            chosen = _FORMAT.search(sql)
            statement = sql[: chosen.start()] if chosen else sql
            return bytes(client.raw_query(statement, parameters=dict(parameters), fmt=chosen.group(1) if chosen else "TabSeparated"))


def _form(kind: str, body: bytes) -> dict[str, str]:
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    parts = ((part.get_param("name", header="content-disposition"), part.get_payload(decode=True)) for part in message.iter_parts())
    return {str(name): payload.decode() for name, payload in parts if isinstance(payload, bytes)}


def create_app(folder: pathlib.Path) -> FastAPI:
    """The HTTP interface over the store in ``folder``."""
    app, engine = FastAPI(), _Engine(folder)

    async def ping() -> Response:
        return Response("Ok.\n")

    async def answer(request: Request) -> Response:
        given, body = dict(request.query_params.items()), await request.body()
        kind = request.headers.get("content-type", "")
        if kind.startswith("multipart/form-data"):
            # clickhouse-connect sends parameters as a form if they are too long for a URL.
            given, body = {**given, **_form(kind, body)}, b""
        sql = given.get("query", "")
        if not sql:
            # The body is a statement; for an INSERT the rows follow after its line.
            insert = _INSERT_AND_DATA.match(body)
            sql, body = (insert["statement"].decode(), body[insert.end() :]) if insert else (body.decode(), b"")
        settings = {name: value for name, value in given.items() if not _NO_SETTINGS.fullmatch(name)}
        parameters = {name.removeprefix("param_"): _Encoded(value) for name, value in given.items() if name.startswith("param_")}
        try:
            database = given.get("database") or "default"
            result = await anyio.to_thread.run_sync(engine.run, sql, body, settings, database, parameters)
        except ClickHouseError as error:
            found = _CODE.search(str(error))
            code = found.group(1) if found else "0"
            return Response(f"{error}\n", 500, {"X-ClickHouse-Exception-Code": code})
        return Response(result, 200, {"X-ClickHouse-Summary": "{}", "X-ClickHouse-Timezone": "UTC"})

    app.add_api_route("/ping", ping, methods=["GET"])
    app.add_api_route("/", answer, methods=["GET", "POST"], response_model=None)
    return app


def main() -> None:
    """Serve until a signal ends the process."""
    folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    os.environ.setdefault("TZ", "UTC")
    uvicorn.run(create_app(folder), host=os.environ.get("TWIN_HOST", "127.0.0.1"), port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
