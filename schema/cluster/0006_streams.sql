-- One row a stream and vantage: its newest rev. A stream whose newest rev is a snapshot, with the next overdue by 30 s, is abandoned.
CREATE VIEW streams ON CLUSTER '{cluster}' AS
SELECT
    * EXCEPT (outcome),
    if(ended, outcome::String,
       if(now64(3) > addMicroseconds(start_time, next_due_us) + INTERVAL 30 SECOND, 'abandoned', 'running')) AS outcome
FROM stream_revs FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
