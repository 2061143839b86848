-- The meaning of `streams` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE streams
    MODIFY COMMENT 'View: one row per stream and vantage, with the statistics and the timeline of its newest revision',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN start_time 'Start of the stream by the clock of its vantage: request sent (client) or request arrived (server), UTC',
    COMMENT COLUMN trace_id 'Trace id (16 bytes), shared by the vantages of a stream; lower(hex(trace_id)) is the usual text',
    COMMENT COLUMN span_id 'Span id (8 bytes) of the stream at this vantage',
    COMMENT COLUMN rev 'Number of the newest revision; snapshots and the final span of a stream count from 1',
    COMMENT COLUMN parent_span_id 'Span id of the parent span; 8 zero bytes: none',
    COMMENT COLUMN ended 'True: the stream is over; false: the newest revision is a snapshot',
    COMMENT COLUMN duration_ns 'Time from start_time to the end of the stream, or to the snapshot, ns',
    COMMENT COLUMN next_due_us 'Latest time after start_time at which the next snapshot is due, µs; 0 in a final span',
    COMMENT COLUMN received_at 'Time at which legato serve inserted the row, UTC',
    COMMENT COLUMN flags 'Remarks: future (start after the receiver''s time), reads_unknown, ttft_any_chunk, and others (docs/reference.md);
    empty array: none', COMMENT COLUMN vantage 'Point at which the stream was recorded: engine, server, gateway, client or screen', COMMENT
    COLUMN error_type 'error.type of the span; empty: no error, or unknown', COMMENT COLUMN service_name 'service.name of the process that
    recorded the stream; empty: unknown', COMMENT COLUMN service_version 'service.version (the release) of the process that recorded the
    stream; empty: unknown', COMMENT COLUMN provider 'gen_ai.provider.name, for example openai; empty: unknown', COMMENT COLUMN model
    'Requested model (gen_ai.request.model); empty: unknown', COMMENT COLUMN response_model 'Model that answered, if it differs from model;
    empty: the same, or unknown', COMMENT COLUMN response_id 'Id of the response (gen_ai.response.id), which joins vantages without a common
    trace; empty: unknown', COMMENT COLUMN finish_reason 'Finish reason of the response, for example stop or length; empty: unknown',
    COMMENT COLUMN route 'http.route of the request; empty: unknown', COMMENT COLUMN conversation_id 'gen_ai.conversation.id; empty:
    unknown', COMMENT COLUMN engine_id
        'Serving engine (legato.engine.id); empty: this vantage does not know it; the view stream_engines has it by trace',
    COMMENT COLUMN client_hash 'Keyed hash of the end user or device (legato.client.hash); empty: unknown',
    COMMENT COLUMN emitter 'Library or program that sent the data, with its version; empty: unknown',
    COMMENT COLUMN transport 'http/1.1, http/2, websocket, or iterator (recorded above the network); empty: unknown',
    COMMENT COLUMN clock 'Clock of the process: boot id:time namespace:anchor in ns; empty: unknown',
    COMMENT COLUMN client_address 'Address of the client end of the connection as seen at this vantage; empty: unknown',
    COMMENT COLUMN client_port 'Port of the client end of the connection; 0: unknown',
    COMMENT COLUMN server_address 'Address of the server end of the connection as seen at this vantage; empty: unknown',
    COMMENT COLUMN server_port 'Port of the server end of the connection; 0: unknown',
    COMMENT COLUMN input_tokens 'Prompt tokens as reported by the response; NULL: not reported',
    COMMENT COLUMN output_tokens 'Generated tokens as reported by the response; NULL: not reported',
    COMMENT COLUMN otlp_bytes 'Size of the OTLP span with all attributes, before compression, bytes',
    COMMENT COLUMN wire_bytes 'Bytes of the response body on the wire; NULL: unknown',
    COMMENT COLUMN chunks 'Number of chunks, the dropped ones included; NULL: unknown',
    COMMENT COLUMN chunks_dropped 'Chunks above the limit of 65,536, which are not in the timeline',
    COMMENT COLUMN content_chunks 'Chunks with content (text, reasoning, tool); NULL: no timeline',
    COMMENT COLUMN content_bytes 'UTF-8 bytes of content without framing; NULL: unknown',
    COMMENT COLUMN ttfb_us 'Time from start_time to the first byte of the response, µs; NULL: unknown',
    COMMENT COLUMN ttft_us 'Time from start_time to the first content of any kind, µs; NULL: no content, or unknown',
    COMMENT COLUMN ttfo_us 'Time from start_time to the first visible text, µs; NULL: no text, or unknown',
    COMMENT COLUMN gaps 'Number of gaps between epochs of content, the open gap included; NULL: no timeline',
    COMMENT COLUMN gap_sum_us 'Sum of all gaps, µs; NULL: no timeline',
    COMMENT COLUMN gap_max_us 'Longest gap, the open gap included, µs; NULL: no gap, or no timeline',
    COMMENT COLUMN gap_open_us
        'Time from the last content to a cancel, an error or a time-out, µs; NULL: the stream completed, or no content',
    COMMENT COLUMN gap_top_us 'The five longest gaps, longest first, µs; empty array: no gap, or no timeline',
    COMMENT COLUMN gap_p50_us 'Median gap by rank, µs; NULL: no gap, or no timeline',
    COMMENT COLUMN gap_p95_us '95th percentile of the gaps by rank, µs; NULL: no gap, or no timeline',
    COMMENT COLUMN gap_p99_us '99th percentile of the gaps by rank (with 100 gaps or fewer the maximum), µs; NULL: no gap, or no timeline',
    COMMENT COLUMN gap_twq50_us
        'Time-weighted median: half of the time in gaps was in gaps up to this length, µs; NULL: no gap, or no timeline',
    COMMENT COLUMN gap_bucket
        'Buckets of the histogram of gaps that have entries: bucket b covers [2^(b/4), 2^((b+1)/4)) µs; empty array: none',
    COMMENT COLUMN gap_bucket_count 'Number of gaps in each bucket of gap_bucket, in the same order',
    COMMENT COLUMN stalls_100ms 'Number of gaps of 100 ms or more; NULL: no timeline',
    COMMENT COLUMN stalls_250ms 'Number of gaps of 250 ms or more; NULL: no timeline',
    COMMENT COLUMN stalls_400ms 'Number of gaps of 400 ms or more; NULL: no timeline',
    COMMENT COLUMN stalls_1000ms 'Number of gaps of 1000 ms or more; NULL: no timeline',
    COMMENT COLUMN stalls_2000ms 'Number of gaps of 2000 ms or more; NULL: no timeline',
    COMMENT COLUMN excess_100ms_us 'Sum of (gap - 100 ms) over the gaps of 100 ms or more, µs; NULL: no timeline',
    COMMENT COLUMN excess_250ms_us 'Sum of (gap - 250 ms) over the gaps of 250 ms or more, µs; NULL: no timeline',
    COMMENT COLUMN excess_400ms_us 'Sum of (gap - 400 ms) over the gaps of 400 ms or more, µs; NULL: no timeline',
    COMMENT COLUMN excess_1000ms_us 'Sum of (gap - 1000 ms) over the gaps of 1000 ms or more, µs; NULL: no timeline',
    COMMENT COLUMN excess_2000ms_us 'Sum of (gap - 2000 ms) over the gaps of 2000 ms or more, µs; NULL: no timeline',
    COMMENT COLUMN jitter_ratio 'gap_p99_us divided by gap_p50_us, at least 1; NULL: fewer than 8 epochs, or no timeline',
    COMMENT COLUMN tokens_per_chunk 'Mean tokens per content chunk; NULL: token counts unknown',
    COMMENT COLUMN multi_token_share 'Share of content chunks with more than one token, 0 to 1; NULL: tokens of single chunks unknown',
    COMMENT COLUMN head_burst
        'Bytes in the first 200 ms of content, divided by the bytes that the middle rate yields in 200 ms; NULL: unknown',
    COMMENT COLUMN tail_flush
        'Bytes in the last 200 ms of content, divided by the bytes that the middle rate yields in 200 ms; NULL: unknown',
    COMMENT COLUMN burstiness 'Burstiness of the gaps after Kim and Jo: -1 regular, 0 random, 1 all at once; NULL: fewer than 7 gaps',
    COMMENT COLUMN starved_2wps_us
        'Time for which an end user who reads 2 words per second waits for text after the first text, µs; NULL: unknown',
    COMMENT COLUMN starved_4wps_us
        'Time for which an end user who reads 4 words per second waits for text after the first text, µs; NULL: unknown',
    COMMENT COLUMN starved_6wps_us
        'Time for which an end user who reads 6 words per second waits for text after the first text, µs; NULL: unknown',
    COMMENT COLUMN starved_8wps_us
        'Time for which an end user who reads 8 words per second waits for text after the first text, µs; NULL: unknown',
    COMMENT COLUMN hold_sum_us
        'Time for which the application kept chunks before it requested the next, sum, µs in steps of 64; NULL: unknown',
    COMMENT COLUMN hold_max_us 'Longest time for which the application kept one chunk, µs in steps of 64; NULL: unknown',
    COMMENT COLUMN dt_us
        'Timeline: time since the previous chunk, the first since start_time, µs; empty array: no timeline, or deleted by its retention',
    COMMENT COLUMN chunk_bytes 'Timeline: UTF-8 bytes of content of each chunk; empty array: unknown',
    COMMENT COLUMN chunk_tokens 'Timeline: tokens of each chunk; empty array: unknown',
    COMMENT COLUMN chunk_kind 'Timeline: 0 role, 1 text, 2 reasoning, 3 tool, 4 usage, 5 heartbeat, 6 retract, 7 done',
    COMMENT COLUMN chunk_hold_64us 'Timeline: time for which the application kept each chunk, in units of 64 µs; empty array: unknown',
    COMMENT COLUMN outcome
        'complete, client_cancel, timeout, upstream_error, engine_abort, abandoned (the next snapshot is overdue), running or unknown',
    COMMENT COLUMN trace 'Trace id in hexadecimal digits',
    COMMENT COLUMN objective 'Name of the objective that applies to the stream (view current_objectives)',
    COMMENT COLUMN gap_limit_us 'A stream with a longer gap is not good, µs',
    COMMENT COLUMN first_output_limit_us 'A stream with a later first output is not good, µs after start_time',
    COMMENT COLUMN good '1: good, 0: not good, also while it runs; NULL: cannot be judged, because it runs and may be good, or has no timeline'
