-- The same for the table itself.
ALTER TABLE verdicts ON CLUSTER '{cluster}'
    MODIFY COMMENT
        'One row per judged gap of a stream: the causes that its time was charged to. Read with FINAL; cause base is a healthy gap'
