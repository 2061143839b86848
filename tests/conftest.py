"""What all tests share: the repository's root on the import path, and CI's rule about skipping.

One idea: on a developer's machine a test whose tool is missing is skipped and says so; with CI=true it fails, because a skipped test
keeps no promise and nobody reads the list.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Generator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# `demo` and `bench` are no distributions: they are imported from where they lie.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def _fail_if_skipped(report: Any) -> None:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with CI=true nothing may be skipped, and this was: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
