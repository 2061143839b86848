"""Run real LLM instrumentation libraries against the fake server and the sink, and write what they export as test data.

`PYTHONPATH=tests python -m captures.capture EMITTER... [--scenario NAME]`; without an emitter it lists all. Environments are made once,
under `--cache`. A capture is kept whole: nothing inside a request is removed or changed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from captures.catalogue import EMITTERS, Emitter
from captures.environments import Environment, made
from captures.fake_llm import PLANS, FakeLLM
from captures.sink import Sink

HERE = pathlib.Path(__file__).parent
DATA = HERE.parent / "data" / "emitters"
TIMEOUT_S = 120
SIZE_MAX_B = 150_000
SETTLE_S = 0.5


@contextmanager
def _grpc_relay(sink: Sink, cache: pathlib.Path) -> Iterator[str]:
    """Yield the address of a gRPC receiver in front of the sink."""
    python = made(Emitter("grpc_relay.py", ("grpcio",)), cache / "grpc-relay").program
    relay = subprocess.Popen([*python, HERE / "grpc_relay.py", sink.url], stdout=subprocess.PIPE, text=True)
    try:
        assert relay.stdout is not None
        yield f"http://127.0.0.1:{int(relay.stdout.readline())}"
    finally:
        relay.kill()
        relay.wait()


def _environ(emitter: Emitter, llm: FakeLLM, endpoint: str, home: pathlib.Path) -> dict[str, str]:
    """Return the environment of an emitter: the two addresses, a home without anybody's files, and no product telemetry."""
    fields = {"llm": llm.url, "sink": endpoint}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{llm.url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": llm.url,
        "ANTHROPIC_API_KEY": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": emitter.protocol,
        "OTEL_NODE_RESOURCE_DETECTORS": "env",
        "TRACELOOP_TELEMETRY": "false",
        "DO_NOT_TRACK": "1",
        # Nothing listens there: a library that phones home by TLS fails on this machine.
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        **{name: value.format(**fields) for name, value in emitter.environ.items()},
    }


def _run(emitter: Emitter, environment: Environment, scenario: str, llm: FakeLLM, endpoint: str) -> None:
    """Run the emitter's script once. Raises if it fails or takes too long."""
    with tempfile.TemporaryDirectory() as home:
        command = [*environment.program, str(environment.script), scenario]
        environ = _environ(emitter, llm, endpoint, pathlib.Path(home))
        done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S)
    print((done.stdout + done.stderr).strip()[-3000:])
    if done.returncode:
        raise SystemExit(f"{emitter.script} {scenario}: exit status {done.returncode}")


def _settled(llm: FakeLLM) -> None:
    """Wait until the fake server has noticed that its clients left."""
    deadline = time.monotonic() + 5
    while any(each.outcome == "open" for each in llm.truth) and time.monotonic() < deadline:
        time.sleep(0.05)


def capture(name: str, scenario: str, out: pathlib.Path, cache: pathlib.Path) -> None:
    """Write one capture file, unless nothing was exported, and print its size and what was received."""
    emitter = EMITTERS[name]
    environment = made(emitter, cache / name)
    llm, sink = FakeLLM(), Sink()
    llm.plan = PLANS[scenario]
    for server in (llm, sink):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    if emitter.protocol == "grpc":
        with _grpc_relay(sink, cache) as endpoint:
            _run(emitter, environment, scenario, llm, endpoint)
    else:
        _run(emitter, environment, scenario, llm, sink.url)
    _settled(llm)
    time.sleep(SETTLE_S)
    if not sink.received:
        print(f"{name} {scenario}: nothing was exported, no file is written")
        return
    held = {
        "emitter": name,
        "packages": environment.versions,
        "language": emitter.language,
        "scenario": scenario,
        "truth": [asdict(each) for each in llm.truth],
        "requests": [each.as_json() for each in sink.received],
    }
    path = out / f"{name}-{scenario}.json"
    path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    size = path.stat().st_size
    outcomes = ", ".join(each.outcome for each in llm.truth)
    received = ", ".join(f"{each.path} {len(each.body)} B" for each in sink.received)
    print(f"{path.name}: {size} B; streams: {outcomes}; {received}")
    if size > SIZE_MAX_B:
        print(f"  too large: at most {SIZE_MAX_B} B are wanted", file=sys.stderr)


def main() -> None:
    """Capture the named emitters, or list all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("emitters", nargs="*", metavar="EMITTER")
    parser.add_argument("--out", type=pathlib.Path, default=DATA)
    parser.add_argument("--scenario", action="append", choices=PLANS)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "legato-captures")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    arguments = parser.parse_args()
    if not arguments.emitters:
        print("\n".join(f"{name}: {', '.join(each.scenarios)}" for name, each in EMITTERS.items()))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.emitters:
        if arguments.fresh:
            shutil.rmtree(arguments.cache / name, ignore_errors=True)
        for scenario in EMITTERS[name].scenarios:
            if not arguments.scenario or scenario in arguments.scenario:
                capture(name, scenario, arguments.out, arguments.cache)


if __name__ == "__main__":
    main()
