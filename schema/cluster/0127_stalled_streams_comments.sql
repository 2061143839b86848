-- The meaning of `stalled_streams` and of each column again: the view was replaced. Metadata only: no part is rewritten.
ALTER TABLE stalled_streams ON CLUSTER '{cluster}'
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN start_time 'Start of the stream by the clock of its vantage: request sent (client) or request arrived (server), UTC',
    COMMENT COLUMN trace_id 'Trace id (16 bytes), shared by the vantages of a stream; lower(hex(trace_id)) is the usual text',
    COMMENT COLUMN span_id 'Span id (8 bytes) of the stream at this vantage',
    COMMENT COLUMN vantage 'Point at which the stream was recorded: engine, server, gateway, client or screen',
    COMMENT COLUMN service_name 'service.name of the process that recorded the stream; empty: unknown',
    COMMENT COLUMN model 'Requested model (gen_ai.request.model); empty: unknown',
    COMMENT COLUMN engine_id 'Serving engine (legato.engine.id); empty: this vantage does not know it',
    COMMENT COLUMN reported_at 'Time at which the newest report was received, UTC',
    COMMENT COLUMN gap_start_us 'Time of the last content, µs after start_time; 0: no content so far',
    COMMENT COLUMN reported_us 'Length of the silence at the newest report, µs',
    COMMENT COLUMN silence_us 'Length of the silence now, by the clock of the store, µs'
