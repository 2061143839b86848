"""The command `legato-gpu-agent`: its options, its help and its exit status.

The help names every step to an engine's first record, and every setting. An expected error is printed as one line, with exit status 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from legato_gpu_agent import __version__
from legato_gpu_agent.agent.malloc import configure_malloc
from legato_gpu_agent.agent.visible import LineFormatter, visible

__all__ = ["main"]

_HELP = """\
Receives the steps of a serving engine, and sends them to Legato.

It runs next to the engine, as the engine's user. For vLLM:

  pip install ./gpu_agent                  into vLLM's environment: the plugins, without dependencies
  pip install './gpu_agent[agent]'         into the agent's environment, which may be the same
  legato-gpu-agent                         in a separate terminal or service
  vllm serve MODEL --enable-logging-iteration-details

vLLM finds the plugins by itself; where VLLM_PLUGINS is set, add "legato" and "legato_scheduler" to it. Without
--enable-logging-iteration-details the records do not show which steps were prefill.

Once a second it also reads engines' metrics endpoints, GPUs through NVML, and the host's counters. This command lists the
sources found on this node and what each missing one leaves unknown, and sends nothing:

  legato-gpu-agent --once --print
"""
_MORE = """\
settings, from the environment (options take precedence):
  LEGATO_ENDPOINT             receiver of steps and measurements; default http://127.0.0.1:4318
  LEGATO_TOKEN                this node's token for the receiver; default none
  LEGATO_ENGINE_PIPE          pipe from the plugins to the agent, accessible to one user only; if they run in containers, set it
                              for both; default engine.pipe in XDG_RUNTIME_DIR/legato, else in /tmp/legato-UID; for root in
                              /run/legato-engine
  LEGATO_ENGINE_FLUSH_MS      interval at which steps and measurements are sent; default 1000
  LEGATO_AGENT_METRICS_PORT   loopback port of the agent's own metrics; default none
  LEGATO_HOST_NAME            name of this node; default its hostname
sources besides the plugins' steps:
  LEGATO_SAMPLE_MS            interval at which engines and GPUs are read; default 1000
  LEGATO_ENGINES              scrape targets, URL or ID=URL, separated by commas; default none
  LEGATO_ENGINE_SCAN          also probe listening ports of this host that engines use by default; 0: no; default 1
  LEGATO_FORWARD_PASSES       ID=ENDPOINT of engines that publish their steps over ZMQ (SGLang, Dynamo); default none
  LEGATO_ITERATIONS           URL or ID=URL of TensorRT-LLM servers (a read removes their data); default none
  LEGATO_KV_EVENTS            ID=ENDPOINT of engines that publish events of their KV cache over ZMQ (vLLM, SGLang); default none
  LEGATO_REQUEST_FILES        ID=FOLDER where SGLang writes a line per request; default none
  LEGATO_PROC_PATH            path of the host's /proc, for a container; default /proc
and in vLLM's environment:
  LEGATO_ENGINE_ID            id of the engine; default host:port of its server
  LEGATO_SCHEDULER_HOOK       1: also send which requests were prefilled, preempted and resumed, which is not stored; default off

The agent needs no root and runs no commands. It opens no network port except the metrics port, if one is set.
"""


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="legato-gpu-agent", description=_HELP, epilog=_MORE, formatter_class=raw)
    parser.add_argument("--endpoint", metavar="URL", help="receiver of steps and measurements [env: LEGATO_ENDPOINT]")
    parser.add_argument("--pipe", metavar="PATH", help="pipe from the plugins to the agent [env: LEGATO_ENGINE_PIPE]")
    parser.add_argument("--metrics-port", metavar="PORT", help="port of the agent's own metrics [env: LEGATO_AGENT_METRICS_PORT]")
    parser.add_argument("--engines", metavar="URLS", help="scrape targets, separated by commas [env: LEGATO_ENGINES]")
    parser.add_argument("--once", action="store_true", help="with --print: read the sources of this node once, and exit")
    parser.add_argument(
        "--print", action="store_true", help="print the sources found, and what each missing signal leaves unknown; send nothing"
    )
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    configure_malloc(os.environ)
    try:
        # Inside the function, because these modules need the packages of the extra `agent`, and --help does not.
        from legato_gpu_agent.agent.inventory import report
        from legato_gpu_agent.agent.loop import Agent
        from legato_gpu_agent.agent.self_metrics import SelfMetrics
        from legato_gpu_agent.agent.settings import Settings, SettingsError
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed; install what the agent needs, in a checkout of Legato: pip install './gpu_agent[agent]'")

    log = _logger()
    given = {
        "LEGATO_ENDPOINT": options.endpoint,
        "LEGATO_ENGINE_PIPE": options.pipe,
        "LEGATO_AGENT_METRICS_PORT": options.metrics_port,
        "LEGATO_ENGINES": options.engines,
    }
    try:
        settings = Settings.from_env({**os.environ, **{name: value for name, value in given.items() if value is not None}})
        if options.once or options.print:
            log.setLevel(logging.ERROR)
            _print_and_exit(*report(settings))
        metrics = SelfMetrics()
        agent = Agent(settings, metrics)
        if settings.metrics_port:
            metrics.serve(settings.metrics_port)
    except (SettingsError, OSError) as error:
        _fail(str(error))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    log.info("listening at %s, sending to %s", settings.pipe, settings.endpoint)
    complete = agent.run()
    log.info("stopped; %s", "everything was sent" if complete else f"some records were not sent: {metrics.dropped_text()}")
    sys.exit(0 if complete else 1)


def _logger() -> logging.Logger:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    return logging.getLogger("legato")


def _fail(message: str) -> NoReturn:
    print(f"legato-gpu-agent: {visible(message)}", file=sys.stderr)
    sys.exit(1)


def _print_and_exit(text: str, found_any: bool) -> NoReturn:
    """Print the report and exit, with status 1 if neither an engine nor a GPU was found.

    The process exits without waiting for threads, because one of them may hang in a source.
    """
    print(text, end="")
    sys.stdout.flush()
    os._exit(0 if found_any else 1)


if __name__ == "__main__":
    main()
