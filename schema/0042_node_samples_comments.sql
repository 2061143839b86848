-- The meaning of `node_samples` and of each column, which DESCRIBE TABLE and `system.columns` show. Metadata only: no part is rewritten.
ALTER TABLE node_samples
    MODIFY COMMENT 'One row per data point of a metric: engines, hosts, GPUs, sockets, and Legato itself',
    COMMENT COLUMN tenant 'Tenant of the token that wrote the row; empty without tenants',
    COMMENT COLUMN metric 'Name of the metric',
    COMMENT COLUMN engine_id 'Engine that the point is about (legato.engine.id); empty: none',
    COMMENT COLUMN host 'host.name, or else host.id, of the sender; empty: unknown',
    COMMENT COLUMN series
        'Hash of everything that names the series: attributes of resource, scope and point, name, unit, kind, temporality',
    COMMENT COLUMN recorded_at 'Time of the point by the clock of the sender, UTC',
    COMMENT COLUMN start_time 'Time at which a sum or histogram began to count, UTC; NULL: the point has none',
    COMMENT COLUMN received_at 'Time at which legato serve inserted the row, UTC',
    COMMENT COLUMN kind 'gauge, sum or histogram',
    COMMENT COLUMN temporality 'cumulative or delta; empty: the kind has none',
    COMMENT COLUMN monotonic 'True: a sum that only grows, so a decrease is a restart',
    COMMENT COLUMN unit 'Unit as sent (UCUM), for example s or By; empty: none',
    COMMENT COLUMN attributes
        'Attributes by name; those of the point override those of scope and resource; texts are cut at 1,024 characters',
    COMMENT COLUMN value 'Value of a gauge or sum, in unit; NULL: a histogram',
    COMMENT COLUMN count 'Number of observations of a histogram; NULL: no histogram',
    COMMENT COLUMN sum 'Sum of the observations of a histogram, in unit; NULL: no histogram, or not sent',
    COMMENT COLUMN bounds 'Upper bounds of the buckets of a histogram, in unit; empty array: no histogram',
    COMMENT COLUMN bucket_counts 'Observations in each bucket, one more than bounds; empty array: no histogram'
