-- The meaning of `stream_engines` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE stream_engines
    MODIFY COMMENT 'View: the engine that served a trace, as its server rows know it, one row per trace and day. Give a condition on day',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN trace_id 'Trace id (16 bytes), shared by the vantages of a stream; lower(hex(trace_id)) is the usual text',
    COMMENT COLUMN day 'Date on which the server rows began, UTC; a condition on it prunes partitions',
    COMMENT COLUMN engine_ids 'All engines that served streams of the trace, sorted',
    COMMENT COLUMN engine_id 'The engine, if the trace has one; empty: several, see engine_ids'
