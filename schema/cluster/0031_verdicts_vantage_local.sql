-- The vantage of the judged stream: `client`, or `server` where no client recorded the stream. A verdict on a server's gap is withdrawn (its
-- cause becomes `base`) when a client's span of the same trace arrives. All verdicts from before are on clients.
ALTER TABLE verdicts_local ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS vantage LowCardinality(String) DEFAULT 'client' CODEC(ZSTD(1))
