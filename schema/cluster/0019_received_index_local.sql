-- What came in since a moment is asked every few seconds, by the attribution and the rollups: rows of one part came at about the same time.
ALTER TABLE stream_revs_local ON CLUSTER '{cluster}'
    ADD INDEX IF NOT EXISTS received_at_minmax received_at TYPE minmax GRANULARITY 1
