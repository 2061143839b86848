-- The jitter ratio is p99 gap / median gap. It was p99 gap / time-weighted median gap, which is near 0 where a freeze takes half of a stream's
-- time. Both gaps are stored, so rows from before get the new ratio; the mutation runs in the background. Rollups keep the old ratio until
-- `legato rollup --since all`.
ALTER TABLE stream_revs
    UPDATE jitter_ratio = gap_p99_us / greatest(gap_p50_us, 1) WHERE jitter_ratio IS NOT NULL
