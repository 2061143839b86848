-- The meaning of `streams_in_flight` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE streams_in_flight
    MODIFY COMMENT 'View: number of streams that run now by service, vantage and model, as reported every 5 s',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN service_name 'service.name of the process that recorded the stream; empty: unknown',
    COMMENT COLUMN vantage 'Point at which the stream was recorded: engine, server, gateway, client or screen',
    COMMENT COLUMN model 'Requested model (gen_ai.request.model); empty: unknown',
    COMMENT COLUMN streams 'Streams in flight',
    COMMENT COLUMN sampled_at 'Time at which the newest sample was received, UTC'
