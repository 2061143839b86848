"""The agent: reads the plugins' pipe, runs the collectors, and exports steps and measurements as OTLP.

The room offers `loop` (the agent), `inventory` (the report of ``--once --print``) and `settings`; the encoders `otlp_spans` and
`otlp_metrics` also serve tests, demo and benchmarks. It may import `plugin` (without `vllm_plugin`), `collectors` and `engines`.
"""
