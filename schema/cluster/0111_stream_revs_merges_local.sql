-- Merges of 8,192 rows or more take one column at a time (the default is 131,072 rows). A row with its timeline has 5 KB, and a merge of 45,000
-- rows by whole rows took 227 MB; column by column 70 MB, at the same speed. Metadata only: no part is rewritten.
ALTER TABLE stream_revs_local ON CLUSTER '{cluster}'
    MODIFY SETTING vertical_merge_algorithm_min_rows_to_activate = 8192
