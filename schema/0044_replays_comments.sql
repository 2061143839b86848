-- The meaning of `replays` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE replays
    MODIFY COMMENT
        'The counterfactual: one row per stalled stream and cause, with the stalls that would remain without the cause. Read with FINAL',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN start_time 'Start of the stream by the clock of its vantage: request sent (client) or request arrived (server), UTC',
    COMMENT COLUMN trace_id 'Trace id (16 bytes), shared by the vantages of a stream; lower(hex(trace_id)) is the usual text',
    COMMENT COLUMN span_id 'Span id (8 bytes) of the judged stream',
    COMMENT COLUMN cause 'Cause that is left out',
    COMMENT COLUMN judged_at 'Time of the judgement, UTC; the newest judgement is valid',
    COMMENT COLUMN engine_id 'Engine of the stream',
    COMMENT COLUMN stalls 'Stalls as they were',
    COMMENT COLUMN stalls_min 'Least number of stalls without the cause',
    COMMENT COLUMN stalls_max 'Greatest number of stalls without the cause',
    COMMENT COLUMN stalled_us 'Time in stalls as it was, µs',
    COMMENT COLUMN stalled_min_us 'Least time in stalls without the cause, µs',
    COMMENT COLUMN stalled_max_us 'Greatest time in stalls without the cause, µs'
