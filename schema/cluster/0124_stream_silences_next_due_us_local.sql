-- When the next report about a silence is due, as the SDK says with each report. A view that assumed the longest possible time showed the
-- streams of a killed process for up to 27 minutes. 0 in earlier rows, and in those of earlier SDKs.
ALTER TABLE stream_silences_local ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS next_due_us UInt64 CODEC(T64, ZSTD(1))
    COMMENT 'Latest time after start_time at which the next report is due while the silence goes on, µs; 0: not known'
