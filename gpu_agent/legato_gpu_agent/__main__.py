"""The command `legato-gpu-agent`: what can be typed, and nothing else.

One idea: its help says all that is needed to see an engine's first step, and names every setting. Errors that are raised on purpose are one
line and exit status 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from legato_gpu_agent import __version__
from legato_gpu_agent.agent.malloc import restrain

if TYPE_CHECKING:
    from legato_gpu_agent.agent.settings import Settings

__all__ = ["main"]

_HELP = """\
Receives what a serving engine did in every step, and sends it to Legato.

It runs beside the engine, as the engine's user. Three commands, for vLLM:

  pip install ./gpu_agent                  into vLLM's environment: brings the plugins and this command
  legato-gpu-agent                         in a terminal or service of its own
  vllm serve MODEL --enable-logging-iteration-details

vLLM finds the plugins by itself; where VLLM_PLUGINS is set, add "legato" and "legato_scheduler" to it. Without
--enable-logging-iteration-details no one knows which steps were prefill.

It also reads, once a second, engines' pages of metrics, GPUs by NVML and the host's counters. This shows what it finds here, what is
missing and what that costs, and sends nothing:

  legato-gpu-agent --once --print
"""
_MORE = """\
settings, from the environment (options win):
  LEGATO_ENDPOINT             where steps and samples go; default http://127.0.0.1:4318
  LEGATO_TOKEN                what the receiver knows this node by; default none
  LEGATO_ENGINE_PIPE          where plugins and agent meet, one user's alone; set it for both when they run in containers;
                              default legato/engine.pipe in XDG_RUNTIME_DIR, else in a folder of the user's own in /tmp
  LEGATO_ENGINE_FLUSH_MS      how often steps are sent; default 1000
  LEGATO_AGENT_METRICS_PORT   loopback port of the agent's own metrics; default none
  LEGATO_HOST_NAME            what this node is called; default its hostname
what it reads besides the plugins' steps:
  LEGATO_SAMPLE_MS            how often pages and GPUs are read; default 1000
  LEGATO_ENGINES              URL or ID=URL of engines whose pages are read, with commas between; default none
  LEGATO_ENGINE_SCAN          also look for pages at ports of this host where engines listen; 0: no; default 1
  LEGATO_FORWARD_PASSES       ID=ENDPOINT of engines that publish their steps over ZMQ (SGLang, Dynamo); default none
  LEGATO_ITERATIONS           URL or ID=URL of TensorRT-LLM servers, which forget what was read; default none
  LEGATO_KV_EVENTS            ID=ENDPOINT of engines that publish events of their KV cache over ZMQ (vLLM, SGLang); default none
  LEGATO_REQUEST_FILES        ID=FOLDER where SGLang writes a line a request; default none
  LEGATO_PROC_PATH            where the host's /proc is, for a container; default /proc
and in vLLM's environment:
  LEGATO_ENGINE_ID            what the engine is called; default host:port of its server
  LEGATO_SCHEDULER_HOOK       1: also tell which requests were prefilled, preempted and resumed; default off

It needs no root, runs no commands, and listens on no network but the metrics port, if asked.
"""


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="legato-gpu-agent", description=_HELP, epilog=_MORE, formatter_class=raw)
    parser.add_argument("--endpoint", metavar="URL", help="where steps go [env: LEGATO_ENDPOINT]")
    parser.add_argument("--pipe", metavar="PATH", help="where the plugins send [env: LEGATO_ENGINE_PIPE]")
    parser.add_argument("--metrics-port", metavar="PORT", help="port of the agent's own metrics [env: LEGATO_AGENT_METRICS_PORT]")
    parser.add_argument("--engines", metavar="URLS", help="engines whose pages to read, with commas between [env: LEGATO_ENGINES]")
    parser.add_argument("--once", action="store_true", help="with --print: look once at what this node has, and end")
    parser.add_argument("--print", action="store_true", help="print what can be seen, and what each missing signal costs; sends nothing")
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    given = _parser().parse_args(arguments)
    restrain(os.environ)
    # What has to do with numbers and protobuf loads after --help has been answered.
    from legato_gpu_agent.agent.loop import Agent
    from legato_gpu_agent.agent.self_metrics import Metrics
    from legato_gpu_agent.agent.settings import Settings, SettingsError

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    options = {
        "LEGATO_ENDPOINT": given.endpoint,
        "LEGATO_ENGINE_PIPE": given.pipe,
        "LEGATO_AGENT_METRICS_PORT": given.metrics_port,
        "LEGATO_ENGINES": given.engines,
    }
    try:
        settings = Settings.from_env({**os.environ, **{name: value for name, value in options.items() if value is not None}})
        if given.once or given.print:
            _look(settings)
        metrics = Metrics()
        agent = Agent(settings, metrics)
        if settings.metrics_port:
            metrics.serve(settings.metrics_port)
    except (SettingsError, OSError) as error:
        print(f"legato-gpu-agent: {error}", file=sys.stderr)
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    logging.getLogger("legato").info("listening at %s, sending to %s", settings.pipe, settings.endpoint)
    complete = agent.run()
    logging.getLogger("legato").info("stopped; %s", "everything was sent" if complete else "some was not sent")
    sys.exit(0 if complete else 1)


def _look(settings: Settings) -> NoReturn:
    """Print what can be seen here. Exit status 1 when there is neither an engine nor a GPU."""
    from legato_gpu_agent.agent.inventory import look

    logging.getLogger("legato").setLevel(logging.ERROR)
    text, any_found = look(settings)
    print(text, end="")
    # A source that hangs must not keep the command from ending.
    sys.stdout.flush()
    os._exit(0 if any_found else 1)


if __name__ == "__main__":
    main()
