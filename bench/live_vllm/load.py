"""The load of `bench/live.py`: real `openai` clients that stream from a real engine, and occasional long prompts.

A load is a few numbers and a seed, so runs with and without Legato send the same requests. It measures only when its own event loop was
late, which explains stalls that no server has a record of.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import openai

__all__ = ["CHAT", "PRESSURE", "STEADY", "Load", "run"]

_WORDS = (
    "import os self return value path file class name list error type object module test async await stream socket buffer parse index "
    "table query node host packet kernel token cache block request"
).split()
_QUESTIONS = (
    "Explain how a bicycle stays upright.", "Write a short story about a lighthouse keeper.", "What should I cook with lentils?",
    "Describe the water cycle for a child.", "Give me ten ideas for a rainy Sunday.", "How does a letter reach another country?",
)  # fmt: skip


_BEAT_S, _LATE_NS = 0.01, 20_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """``streams`` clients, one request after another; a long prompt every ``long_every_s`` (0: none)."""

    name: str
    streams: int
    max_tokens: int
    long_every_s: float = 0.0
    long_words: int = 700
    chat: bool = False
    engine: tuple[str, ...] = field(default=())


_SMALL = ("--enforce-eager", "--dtype", "bfloat16", "--block-size", "32", "--max-num-seqs", "64", "--max-model-len", "2048")
_RANDOM = (*_SMALL, "--load-format", "dummy")
PRESSURE = Load("pressure", 22, 400, 4.0, engine=(*_RANDOM, "--num-gpu-blocks-override", "192"))
CHAT = Load("chat", 8, 200, 6.0, 500, chat=True, engine=_SMALL)
STEADY = Load("steady", 12, 300, engine=_RANDOM)


def _prompt(load: Load, rng: random.Random, words: int) -> str:
    """Words that no prefix cache knows; for a chat, a question about them when they are many."""
    text = " ".join(rng.choice(_WORDS) + (str(rng.randrange(1000)) if rng.random() < 0.3 else "") for _ in range(words))
    if load.chat:
        question = rng.choice(_QUESTIONS)
        return question if words < 100 else f"{text}\n\n{question}"
    return text


async def _one(client: openai.AsyncOpenAI, load: Load, name: str, prompt: str, tokens: int) -> None:
    """One stream, read to its end."""
    stream = await client.chat.completions.create(
        model="live",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=tokens,
        stream=True,
        extra_headers={"X-Request-Id": name},
        extra_body={"ignore_eos": True} if not load.chat else None,
    )
    async for _ in stream:
        pass


async def _heartbeat(late: list[tuple[int, int]]) -> None:
    """Notes when the loop did not run for 20 ms and more: from, to, in ns since the epoch."""
    while True:
        before = time.time_ns()
        await asyncio.sleep(_BEAT_S)
        after = time.time_ns()
        if after - before - _BEAT_S * 1e9 > _LATE_NS:
            late.append((before + int(_BEAT_S * 1e9), after))


async def _load(url: str, load: Load, seconds: float, run_name: str) -> list[tuple[int, int]]:
    late: list[tuple[int, int]] = []
    beating = asyncio.create_task(_heartbeat(late))
    rng, until = random.Random(7), time.monotonic() + seconds
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300, max_retries=0) as client:

        async def stream(number: int) -> None:
            await asyncio.sleep(number * 0.05)
            turn = 0
            while time.monotonic() < until:
                tokens = load.max_tokens + rng.randrange(-50, 50)
                await _one(client, load, f"{run_name}-s{number}-{turn}", _prompt(load, rng, 40 + rng.randrange(20)), tokens)
                turn += 1

        async def long() -> None:
            await asyncio.sleep(5)
            asked, turn = [], 0
            while load.long_every_s and time.monotonic() < until:
                words = int(load.long_words * rng.uniform(0.4, 1))
                asked.append(asyncio.create_task(_one(client, load, f"{run_name}-p{turn}", _prompt(load, rng, words), 8)))
                turn += 1
                await asyncio.sleep(load.long_every_s)
            await asyncio.gather(*asked)

        await asyncio.gather(long(), *(stream(number) for number in range(load.streams)))
    beating.cancel()
    return late


def run(url: str, load: Load, seconds: float, run_name: str) -> list[tuple[int, int]]:
    """Put the load on the server at ``url`` until every stream has ended; when the clients' own event loop was late, in ns."""
    return asyncio.run(_load(url, load, seconds, run_name))
