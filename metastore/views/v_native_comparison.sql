-- Grain: one row per job.
-- Columns: job_id, job_name, batches (micro-batches whose checkpoint was completed and not
--   aborted), parallelism (of the newest run), cairn_files (physical files sealed for them, deleted
--   ones too), native_files (what Spark's own RocksDB state store with changelog checkpointing
--   would have written for the same batches at the parallelism each ran with) and
--   native_files_at_200 (the same at spark.sql.shuffle.partitions' default of 200).
-- Native state files: 2 x partitions x batches + 4. Per state partition and batch one changelog
--   file and its checksum file, plus the base of 4 a query: operator metadata and state schema, with
--   a checksum file each. Counted on Spark 4.3.0. Left out: RocksDB's snapshots, which come on top
--   about every 10 batches, and the offset and commit logs, which a query with Cairn writes too.
-- Read by: the demo's report, and by people who ask what merging saves.
CREATE OR REPLACE VIEW cairn.v_native_comparison AS
SELECT
    j.job_id,
    j.name AS job_name,
    b.batches + h.batches AS batches,
    r.parallelism,
    f.cairn_files + h.files AS cairn_files,
    b.native_files + 2 * h.subtasks AS native_files,
    (b.batches + h.batches) * 2 * 200 + 4 AS native_files_at_200
FROM cairn.jobs AS j
CROSS JOIN LATERAL (
    SELECT
        count(*) AS batches,
        CAST(coalesce(sum(2 * checkpoints.parallelism), 0) + 4 AS bigint) AS native_files
    FROM cairn.checkpoints
    WHERE checkpoints.job_id = j.job_id
      AND checkpoints.status IN ('COMPLETED', 'CONFIRMED', 'SUBSUMED')
) AS b
CROSS JOIN LATERAL (
    SELECT count(*) AS cairn_files
    FROM cairn.physical_files
    WHERE physical_files.job_id = j.job_id
      AND physical_files.sealed_at IS NOT NULL
) AS f
CROSS JOIN LATERAL (
    -- What is trimmed.
    SELECT
        CAST(coalesce(sum(history_days.checkpoints_subsumed), 0) AS bigint) AS batches,
        CAST(coalesce(sum(history_days.subtasks), 0) AS bigint) AS subtasks,
        CAST(coalesce(sum(history_days.files_sealed), 0) AS bigint) AS files
    FROM cairn.history_days
    WHERE history_days.job_id = j.job_id
) AS h
LEFT JOIN LATERAL (
    SELECT runs.parallelism
    FROM cairn.runs
    WHERE runs.job_id = j.job_id
    ORDER BY runs.epoch DESC
    LIMIT 1
) AS r ON TRUE;

COMMENT ON VIEW cairn.v_native_comparison IS
    'One row per job: files Cairn wrote against what native Spark would have written. Native state '
    'files = 2 x partitions x batches + 4: per state partition and batch one changelog file and its '
    'checksum file, plus the base of 4: operator metadata and state schema with a checksum file each. '
    'Snapshots of RocksDB would come on top; the offset and commit logs are left out on both sides.';
