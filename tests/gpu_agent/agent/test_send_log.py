"""The log of sending: a fault is logged when it begins and when it ends, and seldom if it comes and goes."""

from __future__ import annotations

import pytest

from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.send_log import SendLog, status_advice


def test_a_fault_that_comes_and_goes_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Two lines a minute at most, and one that stays is logged even if its start was not."""
    now_s = 0.0
    log = SendLog(SelfMetrics(), lambda: now_s)
    with caplog.at_level("INFO", "legato"):
        for second in range(120):
            now_s = float(second)
            log.failed("steps", "status 503", f"at {second}")
            log.worked("steps")
        for second in range(120, 200):
            now_s = float(second)
            log.failed("steps", "status 503", f"at {second}")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == ["at 0", "at 60", "at 120"]
    assert len(caplog.records) == 5


def test_subjects_and_faults_are_logged_separately(caplog: pytest.LogCaptureFixture) -> None:
    """Measurements over a limit say nothing about steps, and another fault is news."""
    log = SendLog(SelfMetrics())
    with caplog.at_level("INFO", "legato"):
        log.failed("measurements", "status 429", "a")
        log.worked("steps")
        log.failed("measurements", "unreachable", "b")
        log.failed("steps", "unreachable", "c")
    assert [record.getMessage() for record in caplog.records] == ["a", "b", "c"]


@pytest.mark.parametrize(("status", "word"), [(401, "LEGATO_TOKEN"), (429, "limit"), (404, "LEGATO_ENDPOINT"), (503, "log")])
def test_each_status_has_advice(status: int, word: str) -> None:
    """It names the setting to change, or where the reason is."""
    assert word in status_advice(status)
