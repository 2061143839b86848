-- The 1-hour rollup of the counterfactual: the rows of `but_for_minutes` added up, for queries over days. `minute` is the first minute of
-- the hour.
-- Computed again together with its minutes.
CREATE TABLE but_for_hours AS but_for_minutes
