-- The same for the table itself.
ALTER TABLE chunking_changes ON CLUSTER '{cluster}'
    MODIFY COMMENT 'One row per change in how a provider divides its streams into chunks. Read with FINAL and found'
