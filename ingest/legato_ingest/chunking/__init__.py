"""The detector of changes in how providers chunk their streams: sequential tests over the 1-minute rollups.

``worker.ChunkingWorker`` reads rollups and writes detected changes; ``detector``, ``e_process``, ``effect`` and ``series`` are pure. Only
the worker may import ``storage``; all may import the root leaves.
"""
