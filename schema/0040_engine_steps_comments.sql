-- The meaning of `engine_steps` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE engine_steps
    MODIFY COMMENT 'One row per step of a serving engine, as recorded by its front end',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN engine_id 'Serving engine (legato.engine.id)',
    COMMENT COLUMN engine_epoch 'Time at which the engine started, UTC; step numbers begin again with it',
    COMMENT COLUMN recorded_at 'Time at which the front end recorded the step, UTC; late if the front end is late',
    COMMENT COLUMN step 'Number of the step since engine_epoch',
    COMMENT COLUMN received_at 'Time at which legato serve inserted the row, UTC',
    COMMENT COLUMN emitter 'Library or program that sent the data, with its version; empty: unknown',
    COMMENT COLUMN interval_us
        'Shortest time since the previous token over the requests of the step, by the engine''s clock, µs; NULL: unknown',
    COMMENT COLUMN interval_max_us 'Longest time since the previous token over the requests of the step, µs; NULL: unknown',
    COMMENT COLUMN elapsed_us 'Duration of the step as reported by the engine, µs; NULL: unknown',
    COMMENT COLUMN running 'Running requests at the end of the step; NULL: unknown',
    COMMENT COLUMN waiting 'Waiting requests at the end of the step; NULL: unknown',
    COMMENT COLUMN prefill_requests 'Requests in prefill during the step; NULL: unknown',
    COMMENT COLUMN prefill_tokens 'Prompt tokens computed in the step; NULL: unknown',
    COMMENT COLUMN decode_requests 'All other requests of the step; NULL: unknown',
    COMMENT COLUMN decode_tokens 'Tokens of decode_requests, recomputed ones included (vLLM); NULL: unknown',
    COMMENT COLUMN draft_tokens 'Tokens proposed by speculative decoding; NULL: unknown',
    COMMENT COLUMN accepted_tokens 'Proposed tokens that were accepted; NULL: unknown',
    COMMENT COLUMN preempted 'Preemptions as reported by the engine, counted when the request resumes; NULL: unknown',
    COMMENT COLUMN kv_used_ppm 'Share of the KV cache in use, millionths; NULL: unknown'
