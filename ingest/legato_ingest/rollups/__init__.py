"""The rollups that dashboards and alerts read: 1-minute and 1-hour rows, recomputed whole whenever their minute changes.

``worker.Roller`` finds changed minutes and recomputes them with ``compute``; ``queries`` holds the SQL, one statement a table. The room
may import ``storage``, ``timeline`` and the root leaves.
"""
