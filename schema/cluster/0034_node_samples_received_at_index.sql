-- The index of 0027 for the parts from before; the mutation runs in the background.
ALTER TABLE node_samples ON CLUSTER '{cluster}'
    MATERIALIZE INDEX received_at_minmax
