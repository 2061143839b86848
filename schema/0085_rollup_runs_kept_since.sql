-- A longer retention does not bring expired rows back: a minute before this time must not be computed from the rows that are left of it. Each
-- run copies the newest value, because rows of this table expire.
ALTER TABLE rollup_runs
    ADD COLUMN IF NOT EXISTS kept_since DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1))
    COMMENT 'Rows of earlier minutes may have expired, also under an earlier retention: these minutes are not computed again, UTC'
