-- The 1-hour rollup of stalls: the rows of `stall_minutes` added up, for queries over days. `minute` is the first minute of the hour.
-- Computed again together with its minutes.
CREATE TABLE stall_hours AS stall_minutes
