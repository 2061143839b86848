-- The rows of `stream_minutes` added up by the hour, for what looks at days: `minute` is the hour's first. Computed again with its minutes.
CREATE TABLE stream_hours AS stream_minutes
