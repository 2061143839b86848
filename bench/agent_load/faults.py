"""Faults around an agent: engines' servers and publishers, GPUs, the receiver, and foreign writers to its pipe.

A fault begins on a healthy target and returns a function that ends it, so that faults can begin and end at any moment. Everything is real
except the GPUs, which are the fake library of the tests. The module judges nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import random
import re
import signal
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.crash_pipelines.serve import Serve
from helpers.builders.scripted import read_request
from helpers.platform.faults import FaultyProxy
from helpers.platform.nvml import FakeGpus, Value, h200
from helpers.repo.repository import ROOT
from helpers.servers.publisher import Publisher
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.protocol import step_packer

__all__ = ["ENGINES", "GPUS", "EnginePublisher", "EngineServer", "Storm", "kv_events", "one_pass"]

ENGINES = {"vllm": "vllm_0.32", "sglang": "sglang_0.5", "tgi": "tgi_3.3", "lmdeploy": "lmdeploy_0.18"}
GPUS = 4
SERVER_FAULTS = ("cut", "refuse", "hang", "drip", "huge", "back", "nan", "noise", "line", "labels", "long", "lines", "away", "other")
PUBLISHER_FAULTS = ("garbage", "huge", "gap", "again", "silent", "away")
GPU_FAULTS = ("lost", "fails", "hangs", "part fails", "fields missing", "off the bus", "xid", "throttle")
DRIVER_FAULTS = {"missing": ("error", 9), "fails": ("error", 999), "hangs": ("hang_ms", 20_000)}
RECEIVER_FAULTS = ("refuse", "slow", "cut_request", "cut_reply", "stalled", "killed")
FAULT_S = (1.0, 8.0)
# While the driver is missing, faults of a GPU have no effect.
DRIVER_WEIGHT = 0.2
_COUNTER = re.compile(rb"^([a-z_:]+(?:_total|_bucket|_sum|_count)(?:\{.*\})?) ([0-9.e+]+)$", re.M)
_LABEL = re.compile(rb'\b(?!le=)([a-z_]+)="[^"]*"')
_NUMBER = re.compile(rb" [0-9][0-9.e+-]*$", re.M)

End = Callable[[], object]


def _reserved_port() -> tuple[socket.socket, int]:
    """Reserve a port: a socket binds it and never listens, so that servers of the bench can listen on it at times."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved, int(reserved.getsockname()[1])


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def __init__(self, port: int, serve: Callable[[socket.socket], object]) -> None:
        self._answer = serve
        super().__init__(("127.0.0.1", port), socketserver.BaseRequestHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):
            self._answer(request)


class EngineServer:
    """One engine's server at a reserved port; ``fault`` is the current fault of its responses."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.kind, self.fault, self._rng = kind, "", rng
        self._began_s, self._cached = time.monotonic(), (-1, "", b"")
        self._reserved, self.port = _reserved_port()
        self._open()

    def begin(self, fault: str) -> End:
        """Begin a fault; return the function that ends it."""
        self.fault = fault
        if fault == "away":
            self._listener.shutdown()
            self._listener.server_close()
        return self._end

    def _end(self) -> None:
        before, self.fault = self.fault, ""
        if before == "away":
            self._open()

    def _open(self) -> None:
        self._listener = _Listener(self.port, self._serve)
        threading.Thread(target=self._listener.serve_forever, args=(0.1,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(30)
        while read_request(client) and self._answer(client.sendall):
            pass

    def _answer(self, send: Callable[[bytes], object]) -> bool:
        """Send one response; return whether the connection can be used again."""
        fault = self.fault
        if fault in ("hang", "away"):
            time.sleep(10 if fault == "hang" else 0)
            return False
        if fault == "refuse":
            send(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self._rng.choice((204, 302, 404, 500, 503)))
            return True
        text = self._text(fault)
        send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(text))
        for place in range(len(text) if fault == "drip" else 0):
            send(text[place : place + 1])
            time.sleep(0.1)
        send(text[: len(text) // 2] if fault == "cut" else text)
        return fault != "cut"

    def _text(self, fault: str) -> bytes:
        """Return the text, made once a second: counters grow by 1 % per second."""
        second = int(time.monotonic() - self._began_s)
        if self._cached[:2] != (second, fault):
            kind = self._rng.choice([kind for kind in ENGINES if (kind != self.kind) == (fault == "other")])
            text = (ROOT / f"tests/gpu_agent/data/responses/{ENGINES[kind]}.txt").read_bytes()
            factor = (1 + second / 100) * (0.3 if fault == "back" else 1)
            grown = _COUNTER.sub(lambda line: line[1] + b" " + repr(float(line[2]) * factor).encode(), text)
            self._cached = second, fault, self._with_fault(fault, grown)
        return self._cached[2]

    def _with_fault(self, fault: str, text: bytes) -> bytes:
        rng, changes = self._rng, {
            "huge": lambda: text * (50 * 2**20 // len(text)),
            "nan": lambda: _NUMBER.sub(lambda _: rng.choice((b" NaN", b" +Inf", b" -1", b" 1e300", b" 0")), text),
            "noise": lambda: rng.randbytes(rng.randrange(200_000)) + b"\n",
            "line": lambda: text + rng.randbytes(2**20).replace(b"\n", b" ") + b" 1\n",
            "labels": lambda: _LABEL.sub(lambda label: b'%b="%x"' % (label[1], rng.getrandbits(64)), text),
            "long": lambda: _LABEL.sub(lambda label: b'%b="%x%b"' % (label[1], rng.getrandbits(64), b"y" * 100_000), text, count=5),
            "lines": lambda: text + b"".join(b'made_up{id="%x"} 1\n' % rng.getrandbits(64) for _ in range(10_000)),
        }  # fmt: skip
        return changes[fault]() if fault in changes else text


class EnginePublisher:
    """An engine's publisher at a reserved port: ten messages per second, subject to ``fault``."""

    def __init__(self, payload: Callable[[int], bytes], rng: random.Random) -> None:
        self.fault, self._payload, self._rng = "", payload, rng
        self._reserved, port = _reserved_port()
        self.endpoint = f"tcp://127.0.0.1:{port}"
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, fault: str) -> End:
        """Begin a fault; return the function that ends it."""
        self.fault = fault
        return lambda: setattr(self, "fault", "")

    def _run(self) -> None:
        number, out, rng = 0, Publisher(self.endpoint), self._rng
        while True:
            time.sleep(0.1)
            fault, number = self.fault, number + 1
            if fault == "away":
                out.close()
                while self.fault == "away":
                    time.sleep(0.1)
                out = Publisher(self.endpoint)
            elif fault == "garbage":
                out.send(*(rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(1, 6))))
                out.publish(number, rng.randbytes(rng.randrange(1_000)))
            elif fault == "huge":
                if rng.random() < 0.1:
                    out.publish(number, bytes(rng.choice((5, 40)) * 2**20))
            elif fault != "silent":
                number = 1 if fault == "again" else number + rng.randrange(1_000) if fault == "gap" else number
                out.publish(number, self._payload(number))


def one_pass(number: int) -> bytes:
    """Return a forward pass as SGLang publishes it."""
    counts = {"scheduled_requests": {"num_decode_requests": 8}, "queued_requests": {}}
    return msgspec.msgpack.encode({"version": 1, "counter_id": number, "wall_time": 0.02, **counts})


def kv_events(number: int) -> bytes:
    """Return a batch of KV cache events as vLLM publishes it."""
    event = {"type": "BlockStored", "block_hashes": list(range(number, number + 20)), "token_ids": [7] * 320, "medium": "GPU"}
    return msgspec.msgpack.encode([time.time(), [event]])


class Storm:
    """All possible faults, and the current ones."""

    def __init__(
        self,
        servers: Sequence[EngineServer],
        publishers: Sequence[EnginePublisher],
        gpus: FakeGpus,
        receiver: tuple[FaultyProxy, Serve],
        pipe: pathlib.Path,
        seed: int,
    ) -> None:
        self.count, self._rng, self._throttled_ns = Counter[str](), random.Random(seed), 0
        self._gpus, self._pipe = gpus, pipe
        self._proxy, self._serve = receiver
        self._begin: dict[str, tuple[Sequence[str], Callable[[str], End]]] = {
            **{f"server {server.kind}": (SERVER_FAULTS, server.begin) for server in servers},
            **{f"gpu {index}": (GPU_FAULTS, functools.partial(self._gpu, index)) for index in range(GPUS)},
            **{f"publisher {place}": (PUBLISHER_FAULTS, publisher.begin) for place, publisher in enumerate(publishers)},
            "driver": (tuple(DRIVER_FAULTS), self._driver),
            "receiver": (RECEIVER_FAULTS, self._receiver),
            "datagrams": (("garbage",), self._datagrams),
        }
        # The agent starts on a host without a loaded driver.
        self._now: dict[str, tuple[float, End]] = {"driver": (time.monotonic() + 10, lambda: gpus.remove(None, "init_error"))}

    def end_due(self, all_of_them: bool = False) -> None:
        """End the faults that have lasted long enough, or all of them."""
        for target, (until_s, end) in list(self._now.items()):
            if all_of_them or time.monotonic() >= until_s:
                del self._now[target]
                end()

    def begin_random(self) -> None:
        """Begin a random fault at a healthy target, if there is one."""
        healthy = [target for target in self._begin if target not in self._now]
        if not healthy:
            return
        target = self._rng.choices(healthy, [DRIVER_WEIGHT if target == "driver" else 1.0 for target in healthy])[0]
        fault = self._rng.choice(self._begin[target][0])
        self.count[f"{target.split()[0]}: {fault}"] += 1
        self._now[target] = time.monotonic() + self._rng.uniform(*FAULT_S), self._begin[target][1](fault)

    def _gpu(self, index: int, fault: str) -> End:
        rng, gpus, healthy = self._rng, self._gpus, h200(index)
        if fault == "xid":
            gpus.add_event(index, 8, rng.choice((13, 31, 48, 63, 79, 94)))
            return int
        if fault in ("off the bus", "fields missing"):
            removed = rng.sample(sorted(healthy.keys() - {"name", "uuid"}), 8) if fault == "fields missing" else []
            gpus.remove(index, *removed)
            return lambda: gpus.set(index, healthy)
        if fault in ("throttle", "part fails"):
            self._throttled_ns += 10**9
            lasting = {f"field.{field}": self._throttled_ns for field in (74, 75, 269, 270)}
            slow: dict[str, Value] = {"clock.sm": 345, "event_reasons": 0x40, **lasting}
            gpus.set(index, slow if fault == "throttle" else {key: "error 999" for key in rng.sample(sorted(healthy), 5)})
            return lambda: gpus.set(index, {**healthy, **lasting})
        key, value = {"lost": ("error", 15), "fails": ("error", 999), "hangs": ("hang_ms", 20_000)}[fault]
        gpus.set(index, {key: value})
        return lambda: gpus.remove(index, key)

    def _driver(self, fault: str) -> End:
        key, code = DRIVER_FAULTS[fault]
        self._gpus.set(None, {key: code})
        return lambda: self._gpus.remove(None, key)

    def _receiver(self, fault: str) -> End:
        if fault == "killed":
            self._serve.kill()
            return self._serve.start
        if fault == "stalled":
            self._serve.process.send_signal(signal.SIGSTOP)
            return lambda: self._serve.process.send_signal(signal.SIGCONT)
        self._proxy.fault = fault  # type: ignore[assignment]
        return lambda: setattr(self._proxy, "fault", "none")

    def _datagrams(self, fault: str) -> End:
        """Write noise, and datagrams of other engines with flipped bits, as many as the pipe accepts."""
        rng = self._rng
        with open(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0) as out, contextlib.suppress(OSError):
            for _ in range(rng.randrange(1, 100)):
                pack = step_packer(Engine(f"other-{rng.randrange(200)}", time.time_ns()))
                good = bytearray(pack(rng.randrange(1, 2**20), time.time_ns(), 0, *[1] * 13))
                for place in rng.choices(range(len(good)), k=rng.randrange(4)):
                    good[place] ^= 1 << rng.randrange(8)
                out.write(rng.choice((rng.randbytes(rng.randrange(20_000)), bytes(good), bytes(good[: rng.randrange(len(good))]))))
        return int
