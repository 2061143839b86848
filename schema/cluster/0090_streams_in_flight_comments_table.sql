-- The same for the table itself.
ALTER TABLE streams_in_flight ON CLUSTER '{cluster}'
    MODIFY COMMENT 'View: number of streams that run now by service, vantage and model, as reported every 5 s'
