"""LiteLLM's proxy with its OpenTelemetry callback, between a plain client and the fake server."""

import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import time
import urllib.request

from common import MODEL, chat_request, consume
from openai import OpenAI

START_S = 60
# The exporter sends every 5 s.
SETTLE_S = 7


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def config() -> str:
    """Write the proxy's configuration, which is YAML and thus may be JSON; return its path."""
    parameters = {"model": f"openai/{MODEL}", "api_base": os.environ["OPENAI_BASE_URL"], "api_key": "none"}
    settings = {"callbacks": ["otel"], "telemetry": False, "num_retries": 0}
    models = [{"model_name": MODEL, "litellm_params": parameters}]
    path = pathlib.Path("config.yaml")
    path.write_text(json.dumps({"model_list": models, "litellm_settings": settings}), encoding="utf-8")
    return str(path)


port = free_port()
os.environ["LITELLM_MASTER_KEY"] = key = f"sk-{secrets.token_urlsafe(32)}"
program = pathlib.Path(sys.executable).parent / "litellm"
proxy = subprocess.Popen([program, "--config", config(), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"])
try:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness").read()
            break
        except OSError:
            if time.monotonic() > deadline or proxy.poll() is not None:
                raise
            time.sleep(0.2)
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
    consume(client.chat.completions.create(**chat_request()))
    client.close()
    time.sleep(SETTLE_S)
finally:
    proxy.terminate()
    proxy.wait(20)
