"""The rollups that dashboards and alerts read: 1-minute and 1-hour rows, recomputed completely whenever their minute changes.

``worker.RollupWorker`` finds changed minutes and recomputes them with ``compute``; ``queries`` holds the SQL, one statement per table. The
room may import ``storage``, ``timeline`` and the root leaves.
"""
