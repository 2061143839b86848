"""The supported serving engines, one table per engine: which families of its metrics endpoint are which signals.

The room offers `registry` (all engines), `engine` (the types of a table) and `signals` (the signal catalogue). It may import itself only.
"""
