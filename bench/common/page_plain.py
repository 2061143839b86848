"""Chromium without a debugger of its scripts: for times that Playwright would change.

Playwright enables the inspector's domain `Runtime` in every page. Plotly's 5 MB then take about twice as long to run for the first time:
half of that time V8 collects source positions, as it does for the stack traces of exceptions, although the page reports none.
Here the pages are driven through DevTools' pipe with the domain `Page` alone. Not for more than navigating and reading values.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["PlainBrowser", "PlainTab", "plain_browser"]

_SWITCHES = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--mute-audio", "--remote-debugging-pipe", "about:blank",
]  # fmt: skip


class PlainBrowser:
    """A connection to a running Chromium."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser, self._from_browser, self._number, self._rest = to_browser, from_browser, 0, b""

    def send(self, method: str, parameters: dict[str, Any] | None = None, session: str = "") -> dict[str, Any]:
        """Send a command and return its result. Events are left out. Raises ``SystemExit`` if Chromium reports an error."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}, **({"sessionId": session} if session else {})}
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._message()
            if reply.get("id") == self._number:
                break
        if "error" in reply:
            raise SystemExit(f"Chromium answered {method} with {reply['error']}")
        result: dict[str, Any] = reply["result"]
        return result

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from_browser, 1 << 20)
            if not part:
                raise SystemExit("Chromium has ended")
            self._rest += part
        first, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        return message

    @contextlib.contextmanager
    def tab(self, probe: str, width: int, height: int) -> Iterator[PlainTab]:
        """A tab with its own storage and cache, in which a script runs before those of each page."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self.send("Page.enable", session=session)
        self.send("Page.addScriptToEvaluateOnNewDocument", {"source": probe}, session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", size, session)
        try:
            yield PlainTab(self, session)
        finally:
            self.send("Target.disposeBrowserContext", {"browserContextId": context})


class PlainTab:
    """One tab."""

    def __init__(self, running: PlainBrowser, session: str) -> None:
        self._running, self._session = running, session

    def go(self, url: str) -> None:
        """Navigate, and wait until the new page has begun."""
        before = self.evaluate("performance.timeOrigin")
        self._running.send("Page.navigate", {"url": url}, self._session)
        while self.evaluate("performance.timeOrigin") == before:
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        return self._running.send("Runtime.evaluate", asked, self._session)["result"].get("value")


@contextlib.contextmanager
def plain_browser() -> Iterator[PlainBrowser]:
    """Run Chromium with a new profile. Raises ``SystemExit`` where none is installed."""
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    # Chromium reads commands from descriptor 3 and answers on descriptor 4.
    read_commands, to_browser = os.pipe()
    from_browser, write_replies = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        shell = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_replies}'
        command = ["bash", "-c", shell, path, f"--user-data-dir={profile}", *_SWITCHES]
        process = subprocess.Popen(command, pass_fds=(read_commands, write_replies), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_commands)
        os.close(write_replies)
        try:
            yield PlainBrowser(to_browser, from_browser)
        finally:
            process.terminate()
            process.wait(30)
            os.close(to_browser)
            os.close(from_browser)
