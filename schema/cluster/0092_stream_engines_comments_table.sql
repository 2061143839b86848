-- The same for the table itself.
ALTER TABLE stream_engines ON CLUSTER '{cluster}'
    MODIFY COMMENT 'View: the engine that served a trace, as its server rows know it, one row per trace and day. Give a condition on day'
