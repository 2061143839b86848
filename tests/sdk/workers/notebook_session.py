"""A session in a Jupyter notebook: `notebook_session.py SERVER OTLP` runs cells in a real kernel, as a notebook's front end does.

It runs the cell of the set-up twice, reads streams in cells with and without the kernel's event loop, interrupts a cell that waits for a
chunk, leaves a stream open, and shuts the kernel down. It prints the errors of the cells by name, and never calls `legato.flush()`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

SETUP = f"""
import httpx, legato
legato.configure({sys.argv[2]!r}, service_name="workers")
legato.instrument()
def asked(model):
    return {{"method": "POST", "url": {sys.argv[1]!r} + "/chat/completions", "json": {{"model": model, "messages": [], "stream": True}}}}
def read(model):
    with httpx.stream(**asked(model)) as response:
        for line in response.iter_lines():
            print(line)
"""
AWAITED = """
async with httpx.AsyncClient(timeout=60) as client, client.stream(**asked("awaited")) as response:
    async for line in response.aiter_lines():
        print(line)
"""
OPEN = """
client = httpx.Client()
response = client.send(client.build_request(**asked("hang")), stream=True)
lines = response.iter_lines()
next(lines)
"""
PATIENCE_S = 60


def run(client: BlockingKernelClient, cell: str) -> str:
    """Run a cell to its end and return the name of its error; empty without one."""
    return error_of(client.execute(cell, reply=True, timeout=PATIENCE_S))


def error_of(reply: dict[str, Any]) -> str:
    """Return the name of the error in a reply, `aborted` for a cell that the kernel did not run, empty for one that succeeded."""
    status = str(reply["content"]["status"])
    return "" if status == "ok" else str(reply["content"].get("ename", status))


def interrupt(manager: KernelManager, client: BlockingKernelClient) -> str:
    """Interrupt a cell once it has printed the stream's last word, after which the server sends nothing; return the name of its error."""
    # Without `stop_on_error`, or the kernel would answer cells that arrive soon after the interrupt as aborted, and not run them.
    number = client.execute("read('hang')", stop_on_error=False)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") == number and "done" in message["content"].get("text", ""):
            break
    manager.interrupt_kernel()
    while time.monotonic() < deadline:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"].get("msg_id") == number:
            return error_of(reply)
    return "none"


def main() -> None:
    """Run the session."""
    manager, client = start_new_kernel()
    try:
        errors = [run(client, cell) for cell in (SETUP, "read('first')", SETUP, "read('second')", AWAITED)]
        errors += [interrupt(manager, client), run(client, "read('after')"), run(client, OPEN)]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    print(errors)


if __name__ == "__main__":
    main()
