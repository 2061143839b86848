"""A Celery worker with the prefork pool: `celery_application.py FOLDER`, with SERVER and LEGATO_ENDPOINT in the environment.

It queues three tasks in a broker of files, each of which reads one stream, and works on them in two children. A child ends after two tasks.
The module calls `configure()` before the fork. It never calls `legato.flush()`. Each ended task is a line on the standard output.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

import httpx
from celery import Celery

import legato

legato.configure(service_name="workers")
legato.instrument_httpx()
app = Celery("workers", broker="filesystem://")
app.conf.broker_transport_options = {f"data_folder_{way}": sys.argv[1] for way in ("in", "out")} | {
    "control_folder": sys.argv[1],
    "polling_interval": 0.1,
}
app.conf.worker_max_tasks_per_child = 2


def read(model: str) -> None:
    """Read one stream to its end. The first two tasks wait for each other, so each child has one of them."""
    met = [pathlib.Path(sys.argv[1], f"met.task-{number}") for number in range(2)]
    if model in ("task-0", "task-1"):
        pathlib.Path(sys.argv[1], f"met.{model}").touch()
        while not all(each.exists() for each in met):
            time.sleep(0.01)
    asked = {"model": model, "messages": [], "stream": True}
    with httpx.stream("POST", os.environ["SERVER"] + "/chat/completions", json=asked) as response:
        response.read()
    os.write(1, f"{model} {os.getpid()}\n".encode())


task = app.task(read)

if __name__ == "__main__":
    for number in range(3):
        task.delay(f"task-{number}")
    app.worker_main("--quiet worker --pool=prefork --concurrency=2 --without-mingle --without-gossip --without-heartbeat".split())
