"""`configure` and `instrument…` beside imports in other threads, and a flush in a handler of a signal: none hangs or misses a library."""

from __future__ import annotations

import os
import subprocess
import sys

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEGATO_", "PYTEST_"))}
# In each step another thread is inside the import of a library while the main thread calls Legato. What is printed: the function that the
# library has then was replaced, and once.
APPLICATION = """
import faulthandler, importlib, os, signal, sys, threading, time
faulthandler.dump_traceback_later(20, exit=True)
import legato
import legato._worker

inside, slow = threading.Event(), ""

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == slow:
            inside.set()
            time.sleep(0.3)

def beside_import(name, module, call):
    global slow
    inside.clear()
    slow = module
    thread = threading.Thread(target=importlib.import_module, args=[name])
    thread.start()
    inside.wait()
    call()
    thread.join()

def show(step, function):
    print(step, hasattr(function, "__wrapped__"), hasattr(getattr(function, "__wrapped__", None), "__wrapped__"))

sys.meta_path.insert(0, Slow())
legato.instrument()
beside_import("requests", "requests.status_codes", lambda: legato.configure("http://127.0.0.1:9"))
show("configure", sys.modules["requests"].Session.send)
beside_import("aiohttp", "aiohttp.client", legato.instrument_aiohttp)
show("explicit", sys.modules["aiohttp"].ClientSession._request)
legato.uninstrument()

def forked():
    # The importing thread does not run in the child.
    if not (child := os.fork()):
        signal.alarm(10)
        legato.instrument()
        os._exit(0)
    print("forked", os.waitpid(child, 0)[1])

beside_import("httpx", "httpx._client", lambda: (forked(), legato.instrument()))
show("half imported", sys.modules["httpx"].Client.send)
legato.uninstrument()
show("undone", sys.modules["httpx"].Client.send)
for name in [name for name in sys.modules if name.split(".")[0] == "httpx"]:
    del sys.modules[name]
legato.instrument()
beside_import("httpx", "httpx._client", legato.uninstrument)
show("undone meanwhile", sys.modules["httpx"].Client.send)
for name in [name for name in sys.modules if name.split(".")[0] == "httpx"]:
    del sys.modules[name]
# The thread looks for the package, and Legato's finder was not asked.
beside_import("httpx", "httpx", legato.instrument)
show("found", sys.modules["httpx"].Client.send)

make = legato._worker.Worker.__init__

def interrupted(*given):
    legato._worker.Worker.__init__ = make
    os.kill(os.getpid(), signal.SIGTERM)
    make(*given)

legato._worker.Worker.__init__ = interrupted
signal.signal(signal.SIGTERM, lambda *_: print("flushed", legato.flush(1)))
list(legato.wrap(iter("ab")))
print("started", legato.stats()["started"], flush=True)
os._exit(0)
"""
EXPECTED = """\
configure True False
explicit True False
forked 0
half imported True False
undone False False
undone meanwhile False False
found True False
flushed True
started 1
"""


def test_beside_imports_in_other_threads_and_in_a_handler() -> None:
    """Each step hung for ever, or missed the library."""
    done = subprocess.run([sys.executable, "-c", APPLICATION], env=CLEAN, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr


# The provider is made with the first stream, as in `legato run`.
INTERRUPTED = """
import faulthandler, os, signal
faulthandler.dump_traceback_later(20, exit=True)
import legato
from legato import _otlp, _provider, _route

make = _provider.Provider.__init__

def interrupted(*given):
    _provider.Provider.__init__ = make
    os.kill(os.getpid(), signal.SIGTERM)
    make(*given)

_provider.Provider.__init__ = interrupted
signal.signal(signal.SIGTERM, lambda *_: list(legato.wrap(iter("ab"))))
_otlp.configure_later()
list(legato.wrap(iter("cd")))
print(legato.stats()["started"], legato.stats()["lost"], len(_otlp._configured), legato.configure() is _route.own().provider, flush=True)
os._exit(0)
"""


def test_a_stream_in_a_handler_while_the_provider_is_made() -> None:
    """It hung, too. Both streams go to one provider."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], env=CLEAN, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "2 0 1 True\n"), done.stderr
