-- The same for the table itself.
ALTER TABLE engine_steps ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per step of a serving engine, as recorded by its front end'
