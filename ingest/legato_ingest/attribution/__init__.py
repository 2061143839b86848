"""Attribution: every stall is charged to its causes, in nanoseconds that add up, with the evidence for it.

`worker.AttributionWorker` runs it in the background; `run.attribute` is one run, which loads evidence (`load/`), judges it (`model/`, pure
functions) and writes the rows of `verdicts` and `replays`.
The package may import root modules, `storage` (only `load/`, `run` and `worker`) and `timeline`.
"""
