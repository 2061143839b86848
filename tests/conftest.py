"""Configuration of all tests: the import path, skipping in CI, Hypothesis profiles, and the markers `serial` and `long`.

With CI=true a skipped test fails: a developer's machine may lack a tool, but the CI machine must have all tools.

There are two Hypothesis profiles. `ci`, the default, draws the same examples in every run. `fuzz` (`make fuzz`) draws many new examples
in every run; it runs only the Hypothesis tests and the tests with the marker `long`.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import pathlib
import signal
import ssl
import sys
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

ROOT = pathlib.Path(__file__).resolve().parents[1]
# `demo` and `bench` are not distributions: they are imported from the checkout.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Tests run many servers at once, and only one can have the port of the web page; a test of the page sets another.
os.environ.setdefault("LEGATO_WEB_PORT", "0")
os.environ.setdefault("LEGATO_OTLP_GRPC_PORT", "0")
# The processes of pytest-xdist, and the programs that tests start, share their compiled modules: pytest alone needs 9 s of processor time
# to rewrite the assertions of all test modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A script that runs the tests in the background lets them ignore SIGINT, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine replies later than after httpx's five seconds. Each client copies this object.
httpx._config.DEFAULT_TIMEOUT_CONFIG.read = 60.0
# Each client loads the certificates of all authorities, which takes 23 ms of processor time: with httpx.get() each request does.
# Clients that trust the same ones share them. Not those of a test that sets a file in the environment.
_usual_ssl_context = functools.cache(httpx.create_ssl_context)


def _authorities() -> tuple[str | None, str | None]:
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


_USUAL = _authorities()


def _ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    is_usual = verify is True and cert is None and trust_env and _authorities() == _USUAL
    return _usual_ssl_context() if is_usual else httpx.create_ssl_context(verify, cert, trust_env)


httpx._transports.default.create_ssl_context = _ssl_context  # type: ignore[attr-defined]

SLOW_FOLDERS = ("collector", "demo", "docker", "e2e")
BROWSER_FOLDER = "dashboards"
LONGEST = ("test_pipeline.py", "test_compose_up.py", "test_crash.py", "test_shared_store.py")
# How fast examples are drawn depends on what else the machine does, so it fails no test.
SLOW = (HealthCheck.too_slow,)
settings.register_profile(
    "ci", derandomize=True, max_examples=100, deadline=None, database=None, print_blob=True, suppress_health_check=SLOW
)
settings.register_profile("fuzz", derandomize=False, max_examples=1_000, deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def rollups_are_patient() -> None:
    """A run of the rollups computes all that waits, however slow the machine is; tests of its limit set a shorter one."""
    worker = sys.modules.get("legato_ingest.rollups.worker")
    if worker is not None:
        worker._OLD_S_MAX = 300.0  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "serial: needs the machine for itself; under pytest-xdist no other test runs at the same time")
    config.addinivalue_line("markers", "long: takes long and finds little more than its short variant; only `make fuzz` runs it")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the modules of all tests out of every later garbage collection.

    They are half a million objects that stay, and to look through them takes 0.3 s of processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under the profile `fuzz` keep the tests of Hypothesis and the long ones; otherwise leave out the long ones.

    Tests that need the machine for themselves come first, because then they wait for no test of a minute. Folders with such tests follow,
    and of these the longest files, so that at the end of a run no process waits for another.
    """
    items.sort(
        key=lambda item: (not item.get_closest_marker("serial"), item.path.parent.name not in SLOW_FOLDERS, item.path.name not in LONGEST)
    )
    _give_browsers_to_one_process(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    is_fuzz = settings.get_current_profile_name() == "fuzz"
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_long = item.get_closest_marker("long") is not None
        wanted = is_long or is_hypothesis_test(getattr(item, "obj", None)) if is_fuzz else not is_long
        (kept if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _give_browsers_to_one_process(items: list[pytest.Item], processes: int) -> None:
    """Move the dashboards' tests to the start of the second process's share. pytest-xdist gives each process the same number of tests.

    Otherwise they would be left for the end of a run, where all processes would run a browser at once, and pages would time out.
    """
    if processes < 2:
        return
    browsers = [item for item in items if item.path.parent.name == BROWSER_FOLDER]
    others = [item for item in items if item.path.parent.name != BROWSER_FOLDER]
    at = len(items) // processes
    items[:] = [*others[:at], *browsers, *others[at:]]


# Skipping.


def _fail_if_skipped(report: Any) -> None:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with CI=true no test may be skipped, and this one was: {reason}"


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


# Tests that run alone.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Under pytest-xdist hold a lock for each test: shared, or exclusive for one that is marked `serial`.

    The second lock is held by the test that waits for the first, so that a stream of shared holders cannot starve an exclusive one.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = ROOT / ".build"
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        running, waiting = (stack.enter_context((folder / f"tests-{name}.lock").open("w")) for name in ("running", "waiting"))
        fcntl.flock(waiting, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("serial") else fcntl.LOCK_SH)
        fcntl.flock(waiting, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            # Not left to the close: a process that the test forked has the same lock.
            fcntl.flock(running, fcntl.LOCK_UN)
