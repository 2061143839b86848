-- The rows of `but_for_minutes` added up by the hour, for what looks at days: `minute` is the hour's first. Computed again with its minutes.
CREATE TABLE but_for_hours AS but_for_minutes
