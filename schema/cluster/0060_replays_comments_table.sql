-- The same for the table itself.
ALTER TABLE replays ON CLUSTER '{cluster}'
    MODIFY COMMENT
        'The counterfactual: one row per stalled stream and cause, with the stalls that would remain without the cause. Read with FINAL'
