-- The meaning of `engine_requests` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE engine_requests ON CLUSTER '{cluster}'
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN engine_id 'Serving engine (legato.engine.id)',
    COMMENT COLUMN recorded_at 'End of the flush that reported the request, UTC',
    COMMENT COLUMN response_id 'Id of the response, as in stream_revs',
    COMMENT COLUMN step 'Number of the step in which the request ended',
    COMMENT COLUMN received_at 'Time at which legato serve inserted the row, UTC',
    COMMENT COLUMN reason 'Finish reason, for example stop, length or abort; empty: unknown',
    COMMENT COLUMN preemptions 'How often the request was preempted',
    COMMENT COLUMN prompt_tokens 'Tokens of the prompt',
    COMMENT COLUMN output_tokens 'Generated tokens',
    COMMENT COLUMN queued_us 'Time in the queue of the engine, µs',
    COMMENT COLUMN prefill_us 'Time from the first schedule to the first token, µs',
    COMMENT COLUMN decode_us 'Time from the first to the last token, µs'
