-- The meaning of `verdicts` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE verdicts
    MODIFY COMMENT
        'One row per judged gap of a stream: the causes that its time was charged to. Read with FINAL; cause base is a healthy gap',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN start_time 'Start of the stream by the clock of its vantage: request sent (client) or request arrived (server), UTC',
    COMMENT COLUMN trace_id 'Trace id (16 bytes), shared by the vantages of a stream; lower(hex(trace_id)) is the usual text',
    COMMENT COLUMN span_id 'Span id (8 bytes) of the judged stream',
    COMMENT COLUMN gap_start_us 'Start of the gap, µs after start_time',
    COMMENT COLUMN gap_us 'Length of the gap, µs',
    COMMENT COLUMN excess_us 'Length of the gap beyond its part base, µs',
    COMMENT COLUMN judged_at 'Time of the judgement, UTC; the newest judgement of a gap is valid',
    COMMENT COLUMN cause
        'Cause with at least half of the excess; mixed: none has half; base: the gap is healthy or the verdict was withdrawn',
    COMMENT COLUMN confidence 'proven, strong, likely, possible or unknown',
    COMMENT COLUMN share 'Share of the excess that was charged to the cause, 0 to 1',
    COMMENT COLUMN parts 'Time charged by cause, ns; adds up to the gap; a negative part: a delayed stream caught up',
    COMMENT COLUMN engine_id 'Engine of the stream; empty: unknown',
    COMMENT COLUMN step_first 'First engine step that the gap is aligned with; NULL: not aligned',
    COMMENT COLUMN step_last 'Last engine step that the gap is aligned with; NULL: not aligned',
    COMMENT COLUMN missing 'Vantages that the verdict had to do without: client, server, engine; empty array: none',
    COMMENT COLUMN evidence 'Numbers that the verdict was made from, by name; the name ends in the unit',
    COMMENT COLUMN excluded 'Causes that were ruled out, with the reason for each',
    COMMENT COLUMN error_us 'Largest error of the charged times, µs',
    COMMENT COLUMN culprit_step 'Root-cause step: the engine step that caused the stall; NULL: none',
    COMMENT COLUMN culprit_at 'recorded_at of the root-cause step, UTC; 1970: none',
    COMMENT COLUMN culprit_us 'Time that the cause took in the root-cause step, µs; 0: none',
    COMMENT COLUMN culprit_responses 'Response ids of the requests behind the root-cause step; empty array: none or unknown',
    COMMENT COLUMN vantage 'Vantage of the judged stream: client, or server where no client recorded the trace'
