-- The same for the table itself.
ALTER TABLE current_objectives ON CLUSTER '{cluster}'
    MODIFY COMMENT 'View: the objectives that apply now, in the order of rank; the first that matches a stream applies'
