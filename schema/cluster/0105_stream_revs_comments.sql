-- New values of `outcome` and `flags`. Metadata only: no part is rewritten.
ALTER TABLE stream_revs ON CLUSTER '{cluster}'
    COMMENT COLUMN flags 'Remarks: future (start after the receiver''s time), reads_unknown, ttft_any_chunk, and others (docs/reference.md);
    empty array: none', COMMENT COLUMN outcome
        'complete, client_cancel, timeout, upstream_error, engine_abort, abandoned or unknown; running in a snapshot; superseded by another
        row'
