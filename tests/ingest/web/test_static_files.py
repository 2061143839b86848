"""Tests of the page's files: what browsers keep, and what they ask for again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from helpers.repo.repository import ROOT
from helpers.servers.reading import open_store
from helpers.servers.web import web_page
from legato_ingest.web.static_files import version

STATIC = ROOT / "ingest" / "legato_ingest" / "web" / "static"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the page."""
    with open_store(tmp_path_factory.mktemp("files") / "store") as store, web_page(store) as url, httpx.Client(base_url=url) as opened:
        yield opened


def test_files_are_kept_for_ever_by_the_hash_in_their_address(client: httpx.Client) -> None:
    """The HTML is asked for each time and names all modules; each of its addresses is a file that a browser keeps."""
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    modules = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")}
    assert {address.removeprefix(f"/static/{version()}/") for address in addresses} >= modules
    for address in {*addresses, f"/static/{version()}/vendor/plotly.min.js"}:
        reply = client.head(address) if address.endswith("plotly.min.js") else client.get(address)
        assert reply.status_code == 200 and "immutable" in reply.headers["cache-control"], address


@pytest.mark.parametrize("name", ["x" * 300, "x" * 60_000, "\u00e9" * 200], ids=len)
def test_a_long_path_is_no_file(client: httpx.Client, name: str) -> None:
    """The file system is not asked for it."""
    reply = client.get(f"/static/{name}")
    assert reply.status_code == 404 and "content-security-policy" in reply.headers


def test_another_hash_gives_the_file_and_is_not_kept(client: httpx.Client) -> None:
    """A page that is open during an upgrade still finds its modules."""
    for address in ("/static/0123456789ab/main.js", "/static/main.js", "/static/0123456789ab/vendor/plotly.min.js"):
        reply = client.get(address)
        assert reply.status_code == 200 and reply.headers["cache-control"] == "no-cache", address


@pytest.mark.parametrize("path", ["{}/../app.py", "{}/%2e%2e/app.py", "{}//etc/passwd", "{}/{}/main.js", "{}/", "{}/none.js"])
def test_a_hash_opens_no_other_folder(client: httpx.Client, path: str) -> None:
    """Nothing outside the folder, no folder, and no file that is not there."""
    assert client.get("/static/" + path.replace("{}", version())).status_code == 404
