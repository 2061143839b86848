-- The index of 0079 for the parts from before; the mutation runs in the background.
ALTER TABLE engine_requests ON CLUSTER '{cluster}'
    MATERIALIZE INDEX received_at_minmax
