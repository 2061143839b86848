-- The meaning of `stream_sockets` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE stream_sockets ON CLUSTER '{cluster}'
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN start_time 'Start of the stream by the clock of its vantage: request sent (client) or request arrived (server), UTC',
    COMMENT COLUMN trace_id 'Trace id (16 bytes), shared by the vantages of a stream; lower(hex(trace_id)) is the usual text',
    COMMENT COLUMN span_id 'Span id (8 bytes) of the stream at this vantage',
    COMMENT COLUMN rev 'Number of the revision: snapshots and the final span of a stream count from 1; the highest is valid',
    COMMENT COLUMN at 'Indices (from 0) of the chunks that the other arrays have values for',
    COMMENT COLUMN queued_bytes 'Bytes in the receive queue of the socket before the read, plus one; 0: unknown',
    COMMENT COLUMN window_bytes 'Free bytes in the receive window before the read, plus one; 0: unknown',
    COMMENT COLUMN idle_ms 'Time since data last arrived before the read, ms, plus one; 0: unknown'
