"""An application that reads streams in child processes of every kind: `fork_application.py SERVER OTLP`.

Each stream has its own model name, `WAY-NUMBER`. No child calls `legato.flush()`, and the export interval is a minute, so a stream arrives
only if the end of its process sends it. The parent has an unsent stream and an open one at the first fork; both are the parent's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from openai import AsyncOpenAI, OpenAI

import legato

_server = sys.argv[1]


def read(model: str) -> None:
    """Read one stream to its end."""
    with OpenAI(base_url=_server, api_key="none") as client:
        for _ in client.chat.completions.create(model=model, messages=[], stream=True):
            pass


def read_async(model: str) -> None:
    """Read one stream on an event loop."""

    async def run() -> None:
        async with AsyncOpenAI(base_url=_server, api_key="none") as client:
            async for _ in await client.chat.completions.create(model=model, messages=[], stream=True):
                pass

    asyncio.run(run())


def setting_up(model: str) -> None:
    """Read one stream in a child that did not inherit the parent's set-up."""
    legato.configure(sys.argv[2], service_name="forks")
    legato.instrument_openai()
    read(model)


def processes() -> None:
    """`multiprocessing.Process`, of which one is terminated with an open stream; and a child of the fork server."""
    forking, serving = multiprocessing.get_context("fork"), multiprocessing.get_context("forkserver")
    children: list[BaseProcess] = [
        forking.Process(target=read, args=("process-0",)),
        forking.Process(target=read_async, args=("process-1",)),
    ]
    children.append(serving.Process(target=setting_up, args=("forkserver-0",)))
    ready, started = forking.Pipe(duplex=False)
    children.append(forking.Process(target=stay, args=(started,)))
    for child in children:
        child.start()
    ready.recv()
    children[-1].terminate()
    for child in children:
        child.join()


def stay(started: Connection) -> None:
    """Begin a stream and wait to be terminated."""
    with legato.stream(model="terminated-0") as recorder:
        recorder.record(1)
        started.send("open")
        time.sleep(60)


def pools() -> None:
    """`Pool` in a `with` block, which terminates its workers; `Pool` that is closed and joined; `ProcessPoolExecutor`."""
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        pool.map(read, [f"pool_terminated-{number}" for number in range(4)], chunksize=1)
    pool = context.Pool(2)
    pool.map(read, [f"pool_joined-{number}" for number in range(3)], chunksize=1)
    pool.close()
    pool.join()
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        list(executor.map(read, [f"executor-{number}" for number in range(4)]))


def forks() -> None:
    """Children of `os.fork` that end by `os._exit`, one of them after its child; and one that ends by `sys.exit`."""
    for number in range(3):
        child = os.fork()
        if not child and number == 0:
            read("fork-0")
            os._exit(0)
        if not child and number == 1:
            read("fork-1")
            grandchild = os.fork()
            if not grandchild:
                read("grandchild-0")
                os._exit(0)
            os.waitpid(grandchild, 0)
            os._exit(0)
        if not child:
            read("fork-2")
            sys.exit(0)
        os.waitpid(child, 0)


def main() -> None:
    """Read streams in all ways, and print the parent's counters."""
    legato.configure(sys.argv[2], service_name="forks")
    legato.instrument_openai()
    read("parent-0")
    with legato.stream(model="parent-1") as recorder:
        recorder.record(1)
        forks()
    processes()
    pools()
    counters = legato.stats()
    print(legato.flush(), counters["started"], counters["ended"], legato.stats()["exported"])


if __name__ == "__main__":
    main()
