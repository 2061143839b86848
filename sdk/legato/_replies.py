"""What the endpoint replied to exports: an export that is refused for good must be visible, because it loses every stream.

OpenTelemetry's exporter logs a refusal and goes on. Here refusals are counted, named once with what to do, and reported by ``legato.flush``
and ``legato.stats``. Replies that the exporter retries (408, 429, 5xx) are none. A page of a login or a redirect to it is one.
"""

from __future__ import annotations

import logging
from typing import Any

from legato._exits import after_fork

__all__ = ["Replies", "replies"]

_log = logging.getLogger("legato")
_RETRIED = (408, 429)
_ADVICE = {401: "set LEGATO_TOKEN to a token of `legato token add`", 403: "the token may not write: add one that may"}
_PAGE_ADVICE = "a page or a redirect answers, as of a login or a proxy: check that LEGATO_ENDPOINT is the OTLP endpoint of `legato serve`"


def _is_page(response: Any) -> bool:
    """Whether a reply that the exporter takes for a success is no OTLP endpoint's: a text, or a redirect."""
    if not getattr(response, "ok", False):
        return False
    is_text = response.headers.get("content-type", "").lower().startswith("text/")
    return response.status_code >= 300 or (is_text and bool(response.content))


class Replies:
    """``refused``: the number of refused exports. ``is_refused``: the newest reply was a refusal. ``is_unreachable``: the newest attempt
    found no server."""

    def __init__(self) -> None:
        self._is_logged = False
        self.reset()

    def reset(self) -> None:
        """Start from zero, as a forked child does. What its parent has logged, it does not log again."""
        self.refused = 0
        self.is_refused = False
        self.is_unreachable = False

    def note(self, response: Any, *_: object, **__: object) -> None:
        """Note a reply: a hook of ``requests``."""
        status = int(getattr(response, "status_code", 0))
        self.is_unreachable = False
        is_page = _is_page(response)
        self.is_refused = is_page or (400 <= status < 500 and status not in _RETRIED)
        if not self.is_refused:
            return
        self.refused += 1
        if not self._is_logged:
            self._is_logged = True
            advice = _PAGE_ADVICE if is_page else _ADVICE.get(status, "check that LEGATO_ENDPOINT is the OTLP endpoint of `legato serve`")
            _log.error("the endpoint refuses Legato's exports (HTTP %d), and their streams are lost: %s", status, advice)


replies = Replies()
"""The replies to this process's exports."""
after_fork(replies.reset)
