"""The program behind `make demo`: it replays recorded streams over HTTP while Legato records, stores and reports them.

Nothing is mocked. A FastAPI server sends OpenAI's SSE at the recorded times, `openai` clients read it over loopback HTTP, the SDK records
both ends, and `legato serve` stores their spans. The demo may import every distribution; no distribution imports the demo.
"""
