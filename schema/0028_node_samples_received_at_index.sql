-- The index of 0027 for the parts from before; the mutation runs in the background.
ALTER TABLE node_samples
    MATERIALIZE INDEX received_at_minmax
