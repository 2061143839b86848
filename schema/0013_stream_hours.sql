-- The 1-hour rollup of streams: the rows of `stream_minutes` added up, for queries over days. `minute` is the first minute of the hour.
-- Computed again together with its minutes.
CREATE TABLE stream_hours AS stream_minutes
