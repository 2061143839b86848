-- The same for the table itself.
ALTER TABLE but_for_hours ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The 1-hour rollup of the counterfactual: the rows of but_for_minutes added up. Read with FINAL and streams > 0'
