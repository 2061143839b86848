"""Legato's agent beside a serving engine: what the engine did, step by step, as OTLP spans (schema/STEPS.md)."""

__version__ = "0.1.0"
