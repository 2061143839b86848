"""The model of attribution: pure functions from arrays of times to verdicts.

It holds the types that `load/` fills (`vantage`, `engine`, `metrics`, `gpu_throttle`, `cpu_wait`), the steps from them to a verdict, and
`judge`, which runs these steps for one group of streams.
It imports numpy, the standard library, `legato_ingest.causes`, `legato_ingest.definitions`, `timeline` and itself, and never reads a store
or a clock.
"""
