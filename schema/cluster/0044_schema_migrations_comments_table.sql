-- The same for the table itself.
ALTER TABLE schema_migrations ON CLUSTER '{cluster}'
    MODIFY COMMENT 'The numbered schema files that were applied to this store, one row per file'
