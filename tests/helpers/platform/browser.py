"""Debian's Chromium, driven by Playwright: a page that notes its errors and every request that leaves loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from helpers.repo.repository import ROOT

__all__ = ["Seen", "chromium", "opened", "pictured", "settled"]

# A container's root has no user namespaces for the sandbox. The other switches stop Chromium's own connections to its vendor.
_SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip
_LOADING_MS_MAX = 60_000
# Several tests share two cores, so a page may wait long for its processor.
expect.set_options(timeout=30_000)


@dataclass
class Seen:
    """What a page reported: console errors, uncaught errors, and the hosts of its requests."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def note_message(self, message: ConsoleMessage) -> None:
        """Keep errors and warnings."""
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def note_request(self, request: Request) -> None:
        """Keep the host of a request that uses the network."""
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data"):
            self.hosts.add(parts.hostname or "")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser; the test is skipped where none is installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_SWITCHES)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Browser, url: str, *, width: int = 1280, height: int = 900, theme: str = "dark") -> Iterator[tuple[Page, Seen]]:
    """A new page with its own storage at ``url``, and what it reports."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light" if theme == "light" else "dark")
    page, seen = context.new_page(), Seen()
    page.on("console", seen.note_message)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", seen.note_request)
    try:
        page.goto(url)
        yield page, seen
    finally:
        context.close()


def pictured(page: Page, name: str) -> None:
    """Draw the page at three widths, dark and light.

    With LEGATO_TEST_PICTURES=1 the folder `.build/screenshots` gets a picture of each, for people to look at.
    """
    folder = ROOT / ".build" / "screenshots" if os.environ.get("LEGATO_TEST_PICTURES") == "1" else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for theme in ("dark", "light"):
        page.evaluate("theme => document.documentElement.dataset.theme !== theme && document.getElementById('theme').click()", theme)
        for width in (390, 1280, 1920):
            # Panels outside of the window are not drawn, so the window is as high as the page.
            page.set_viewport_size({"width": width, "height": 1_000})
            page.set_viewport_size({"width": width, "height": min(int(page.evaluate("() => document.body.scrollHeight")), 8_000)})
            settled(page)
            if folder is not None:
                page.screenshot(path=folder / f"{name}-{width}-{theme}.png")


def settled(page: Page) -> None:
    """Wait until the page has content and no panel is loading."""
    page.locator("main > * > *").first.wait_for()
    page.wait_for_timeout(200)
    for _ in range(_LOADING_MS_MAX // 100):
        if page.locator(".panel.loading").count() == 0:
            break
        page.wait_for_timeout(100)
    page.wait_for_timeout(100)
    assert page.locator(".panel.loading").count() == 0, "panels are still loading"
