"""Attribution: every stall charged to its cause, exactly and with evidence (DESIGN: attribution).

One idea: pure functions over arrays. A gap is compared at the same chunk at every vantage, so no clock is compared with another; what the
engine took is a sum of its steps. Nothing here reads a store or a clock: `worker` does.
"""
