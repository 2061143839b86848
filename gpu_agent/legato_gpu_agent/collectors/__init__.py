"""Collectors and the readers that they use: each collector reads one kind of source and yields measurements.

The room offers the collectors, `base` (their interface), `measurement` (their results) and `engine_registry` (which engine owns a process).
It may import itself, `engines`, and of `plugin` the modules `identity`, `model` and `protocol`.
"""
