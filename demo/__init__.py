"""What `make demo` runs: recorded server timelines, replayed for real, recorded by Legato, stored, and reported.

One idea: nothing is mocked. A FastAPI server speaks OpenAI's SSE at the recorded instants, `openai` clients read it over loopback HTTP,
the SDK watches both ends, and `legato serve` keeps what they send. It may use every distribution; nothing imports it.
"""
