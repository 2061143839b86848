-- The meaning of `current_objectives` and of each column again: the view was replaced. Metadata only: no part is rewritten.
ALTER TABLE current_objectives
    MODIFY COMMENT 'View: the objectives that apply now, in the order of rank; the first that matches a stream applies',
    COMMENT COLUMN rank 'Place in the order; the first objective that matches a stream applies',
    COMMENT COLUMN tenant 'Tenant of the streams; * for all tenants',
    COMMENT COLUMN name 'Name of the objective',
    COMMENT COLUMN service 'Pattern of the service name; * stands for any characters',
    COMMENT COLUMN model 'Pattern of the model; * stands for any characters',
    COMMENT COLUMN route 'Pattern of the route; * stands for any characters',
    COMMENT COLUMN service_like 'The same pattern for LIKE, of service',
    COMMENT COLUMN model_like 'The same pattern for LIKE, of model',
    COMMENT COLUMN route_like 'The same pattern for LIKE, of route',
    COMMENT COLUMN target 'Share of the streams that has to be good, between 0 and 1',
    COMMENT COLUMN gap_limit_us 'A stream with a longer gap is not good, µs',
    COMMENT COLUMN first_output_limit_us 'A stream with a later first output is not good, µs after its start'
