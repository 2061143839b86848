-- One row per stream and vantage: its newest revision. A stream is `abandoned` if its newest revision is a snapshot and the next snapshot
-- is 30 s overdue. All revisions of a stream share one start time and therefore one partition, so FINAL can merge each partition
-- separately.
CREATE VIEW streams ON CLUSTER '{cluster}' AS
SELECT
    * EXCEPT (outcome),
    if(ended, outcome::String,
       if(now64(3) > addMicroseconds(start_time, next_due_us) + INTERVAL 30 SECOND, 'abandoned', 'running')) AS outcome
FROM stream_revs FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
