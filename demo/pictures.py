"""Take the pictures of the documentation from a running demo: `python -m demo.pictures`, after `make demo` has printed its report.

Each picture is taken in a real browser at the size in which pages show it, dark and light. It needs Playwright and Chromium
(`make install`, and Debian's package `chromium`). The module changes no store.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Annotated

import httpx
import typer
from playwright.sync_api import Browser, Page, sync_playwright

__all__ = ["main"]

_THEMES = ("dark", "light")
_SIZE_BYTES_MAX = 300_000
_WIDTH = 1280
# The stream of the replay with the longest stall by each of two causes.
_LONGEST = """
SELECT lower(hex(trace_id)) AS trace, cause, rank FROM
(
    SELECT trace_id, span_id, cause, gap_us, row_number() OVER (PARTITION BY trace_id, span_id ORDER BY gap_start_us) AS rank
    FROM verdicts FINAL
    WHERE cause != 'base' AND (tenant, start_time, trace_id, span_id) IN
        (SELECT tenant, start_time, trace_id, span_id FROM streams WHERE service_name = 'demo-app' AND vantage = 'client')
)
WHERE cause IN ('scheduling', 'kv_pressure')
ORDER BY gap_us DESC
LIMIT 1 BY cause
"""


def main(
    web: Annotated[str, typer.Option(help="URL of the web page.")] = "http://127.0.0.1:8080",
    out: Annotated[pathlib.Path, typer.Option(help="Folder of the pictures.")] = pathlib.Path("docs/pictures"),
) -> None:
    """Write the pictures. Fails if one has more than 300 kB, or if the page reports an error."""
    out.mkdir(parents=True, exist_ok=True)
    data = httpx.post(f"{web}/api/sql", json={"sql": _LONGEST}, timeout=60).raise_for_status().json()["data"]
    stalls = {cause: (trace, rank) for cause, trace, rank in zip(data["cause"], data["trace"], data["rank"], strict=True)}
    path = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, address, height in _pictures(stalls):
            for theme in _THEMES:
                _take(browser, f"{web}{address}", out / f"{name}-{theme}.png", theme, height)
        browser.close()


def _pictures(stalls: dict[str, tuple[str, int]]) -> Iterator[tuple[str, str, int]]:
    """Yield the name, the address and the height in pixels of each picture."""
    yield "streams", "/?from=now-6h&to=now", 1_000
    for name, cause in (("stream", "kv_pressure"), ("stall", "scheduling")):
        trace, rank = stalls[cause]
        yield name, f"/stream/{trace}?stall={rank}", 1_000


def _take(browser: Browser, url: str, path: pathlib.Path, theme: str, height: int) -> None:
    context = browser.new_context(viewport={"width": _WIDTH, "height": height}, color_scheme="light" if theme == "light" else "dark")
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    _settle(page)
    page.screenshot(path=path)
    context.close()
    size = path.stat().st_size
    print(f"{path}  {size / 1_000:.0f} kB")
    if errors or size > _SIZE_BYTES_MAX:
        raise SystemExit(f"{path}: {errors or f'{size} bytes, expected at most {_SIZE_BYTES_MAX}'}")


def _settle(page: Page) -> None:
    """Wait until nothing loads any more and the charts have drawn."""
    page.locator("main h1").first.wait_for()
    page.wait_for_timeout(1_000)
    while page.locator(".panel.loading").count():
        page.wait_for_timeout(100)
    page.wait_for_timeout(2_000)


if __name__ == "__main__":
    typer.run(main)
