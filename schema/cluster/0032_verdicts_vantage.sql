-- The same for the Distributed table.
ALTER TABLE verdicts ON CLUSTER '{cluster}'
    ADD COLUMN IF NOT EXISTS vantage LowCardinality(String) DEFAULT 'client'
