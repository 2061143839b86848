-- The meaning of `schema_migrations` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE schema_migrations
    MODIFY COMMENT 'The numbered schema files that were applied to this store, one row per file',
    COMMENT COLUMN number 'Number of the file',
    COMMENT COLUMN name 'Name of the file without number and suffix',
    COMMENT COLUMN sha256 'SHA-256 of the text of the file, hexadecimal',
    COMMENT COLUMN applied_at 'Time at which the file was applied, UTC'
