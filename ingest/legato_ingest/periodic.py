"""A piece of work that is done again and again on a thread of its own.

One idea: what fails is counted, logged and tried again; nothing that runs in the background ends because it failed once. It knows no store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from legato_ingest.errors import StoreError
from legato_ingest.metrics import Metrics

__all__ = ["Background"]

_log = logging.getLogger("legato")


class Background:
    """Calls ``step`` every ``every_s`` seconds from ``start()`` until ``close()``, the first time after ``first_s`` (default: likewise).

    ``stage`` is its name in logs and counters. Only while it is ``my_turn``: of several instances on one store one works.
    """

    def __init__(
        self,
        stage: str,
        step: Callable[[], object],
        every_s: float,
        metrics: Metrics,
        first_s: float | None = None,
        my_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        self.my_turn = my_turn
        self._stage, self._step, self._every_s, self._metrics = stage, step, every_s, metrics
        self._first_s = every_s if first_s is None else first_s
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"legato-{stage}", daemon=True)

    def start(self) -> None:
        """Work in the background from now on."""
        self._thread.start()

    def close(self) -> None:
        """Let the step that runs come to its end (it may ask ``closing``), and begin no other."""
        self.closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._first_s
        while not self.closing.wait(pause_s):
            pause_s = self._every_s
            if not self.my_turn():
                continue
            try:
                self._step()
            except StoreError as error:
                self._metrics.errors.labels(self._stage, type(error).__name__).inc()
                _log.warning("%s: the store could not answer, it tries again: %s", self._stage, error)
            except Exception as error:
                self._metrics.errors.labels(self._stage, type(error).__name__).inc()
                _log.exception("%s failed, and tries again", self._stage)
