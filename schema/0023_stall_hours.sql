-- The rows of `stall_minutes` added up by the hour, for what looks at days: `minute` is the hour's first. Computed again with its minutes.
CREATE TABLE stall_hours AS stall_minutes
