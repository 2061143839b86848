-- The attribution queries every few seconds for requests received since its last run. Without the index, each of these
-- queries reads the times of all requests.
ALTER TABLE engine_requests ON CLUSTER '{cluster}'
    ADD INDEX IF NOT EXISTS received_at_minmax received_at TYPE minmax GRANULARITY 1
