-- The meaning of `rejected` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE rejected
    MODIFY COMMENT 'Spans and data points that could not be stored, with the reason; kept for 30 days',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN received_at 'Time at which legato serve inserted the row, UTC',
    COMMENT COLUMN reason 'Reason code, for example timeline or retention',
    COMMENT COLUMN detail 'Names and types of what was found and expected; never the value of an attribute',
    COMMENT COLUMN trace_id 'Trace id (16 bytes); zero bytes: a data point, or unknown',
    COMMENT COLUMN span_id 'Span id (8 bytes); zero bytes: a data point, or unknown',
    COMMENT COLUMN rev 'Number of the revision; 0: a data point',
    COMMENT COLUMN start_time 'Start of the span or time of the data point, UTC',
    COMMENT COLUMN service_name 'service.name of the sender; empty: unknown',
    COMMENT COLUMN emitter 'Library or program that sent the data, with its version; empty: unknown',
    COMMENT COLUMN otlp_bytes 'Size of the OTLP span or data point, bytes',
    COMMENT COLUMN span_sha256 'SHA-256 (32 bytes) of the span or data point, so that a retry is the same row'
