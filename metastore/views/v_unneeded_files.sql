-- Grain: one row per file that is not deleted and that nothing needs.
-- Columns: job_id, job_name, file_id, path (key below the job's storage), epoch (the run that made
--   it), status, size_bytes (null until sealed), sealed_at, condemned_at, reason (in words), and
--   is_condemnable (whether the next cleanup condemns it and asks for its deletion: not what is
--   condemned already, nor an intent whose object may still appear).
-- Read by: the cleanup, which plans from it and condemns through it; v_metrics; and people who ask
--   what will be deleted.
CREATE OR REPLACE VIEW cairn.v_unneeded_files AS
SELECT
    f.job_id,
    (SELECT jobs.name FROM cairn.jobs WHERE jobs.job_id = f.job_id) AS job_name,
    f.file_id,
    f.path,
    f.epoch,
    f.status,
    f.size_bytes,
    f.sealed_at,
    f.condemned_at,
    CASE
        WHEN f.status = 'CONDEMNED' THEN 'condemned, waits for its deletion'
        WHEN f.job_id IN (SELECT jobs.job_id FROM cairn.jobs WHERE jobs.dropped_at IS NOT NULL)
            THEN 'its job was dropped'
        WHEN f.status = 'SEALED' THEN 'sealed, and holds no live segment'
        WHEN f.maintenance_run_id IS NOT NULL
            THEN 'its maintenance run is over, or has lost its lease'
        WHEN f.epoch < (SELECT jobs.current_epoch FROM cairn.jobs WHERE jobs.job_id = f.job_id)
            THEN 'its writer, run ' || f.epoch || ', was replaced and can never seal it'
        WHEN right(f.path, 10) <> '/_metadata' AND EXISTS (
            SELECT FROM cairn.runs
            WHERE runs.job_id = f.job_id
              AND runs.epoch = f.epoch
              AND cairn.is_over(runs.ended_at, runs.seen_at)
        ) THEN 'its writer, run ' || f.epoch || ', has ended'
        WHEN f.batch_id IS NULL
            AND f.materialization_id IS NULL
            AND f.maintenance_run_id IS NULL
            AND right(f.path, 10) <> '/_metadata'
            THEN 'initial state of run ' || f.epoch || ', whose first batch is over'
        WHEN f.materialization_id IS NOT NULL
            THEN 'its materialization has ended, or another one of the subtask has been completed'
        WHEN right(f.path, 10) = '/_metadata'
            THEN 'nobody has finished this manifest, and its checkpoint is not retained'
        ELSE 'nobody may seal it any more: its batch is over, or another request has won'
    END AS reason,
    -- No object appears longer than 20 min after its intent: a writer that was held up sends
    -- nothing, S3 refuses what was signed more than 15 min ago, and a request ends
    -- (LONGEST_HOLD_S and LONGEST_WRITE_S in cairn.storage.store).
    f.status = 'SEALED'
        OR (f.status = 'WRITING' AND f.created_at <= now() - INTERVAL '20 minutes')
        AS is_condemnable
FROM cairn.physical_files AS f
WHERE f.status <> 'DELETED'
  AND (
    f.status = 'CONDEMNED'
    OR (f.status = 'SEALED' AND (
        f.is_empty
        -- As a list, which is read once. What is WRITING is of a run that was replaced.
        OR f.job_id IN (SELECT jobs.job_id FROM cairn.jobs WHERE jobs.dropped_at IS NOT NULL)
    ))
    -- Whatever runs of the job begin meanwhile: its maintenance run alone may seal it.
    OR (
        f.status = 'WRITING'
        AND f.maintenance_run_id IS NOT NULL
        AND NOT cairn.is_leased(f.maintenance_run_id)
    )
    OR (
        f.status = 'WRITING'
        AND f.maintenance_run_id IS NULL
        AND (
            f.epoch < (SELECT jobs.current_epoch FROM cairn.jobs WHERE jobs.job_id = f.job_id)
            OR (
                f.batch_id IS NOT NULL
                AND NOT EXISTS (
                    SELECT FROM cairn.checkpoints
                    WHERE checkpoints.job_id = f.job_id
                      AND checkpoints.epoch = f.epoch
                      AND checkpoints.batch_id = f.batch_id
                      AND checkpoints.status IN ('IN_PROGRESS', 'COMPLETED')
                )
            )
            -- Not a manifest, which the command writes, too, after the run.
            OR (right(f.path, 10) <> '/_metadata' AND EXISTS (
                SELECT FROM cairn.runs
                WHERE runs.job_id = f.job_id
                  AND runs.epoch = f.epoch
                  AND cairn.is_over(runs.ended_at, runs.seen_at)
            ))
            OR (right(f.path, 10) = '/_metadata' AND NOT EXISTS (
                SELECT FROM cairn.checkpoints
                WHERE checkpoints.job_id = f.job_id
                  AND checkpoints.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
                  AND f.path = checkpoints.job_id || '/chk-' || checkpoints.checkpoint_id
                    || '/_metadata'
            ))
            -- A process that was killed leaves its row unfinished. A later one that is completed
            -- replaces what the earlier one, if it is alive, could install.
            OR (f.materialization_id IS NOT NULL AND NOT EXISTS (
                SELECT FROM cairn.materializations AS own
                WHERE own.materialization_id = f.materialization_id
                  AND own.finished_at IS NULL
                  AND NOT EXISTS (
                    SELECT FROM cairn.materializations AS later
                    WHERE later.job_id = own.job_id
                      AND later.subtask = own.subtask
                      AND later.started_at > own.started_at
                      AND later.finished_at IS NOT NULL
                      AND later.error IS NULL
                  )
                -- Asked for each file, by index: as a hash it would read the whole table.
                OFFSET 0
            ))
            -- Initial state stays WRITING. Once a batch of its run is confirmed nobody reads it; a
            -- day is for what else is written for no batch.
            OR (
                f.batch_id IS NULL
                AND f.materialization_id IS NULL
                AND f.maintenance_run_id IS NULL
                AND right(f.path, 10) <> '/_metadata'
                AND f.created_at <= now() - INTERVAL '24 hours'
                -- In an index's order: nearly all of a run are confirmed, so the server would begin
                -- to read the whole table.
                AND (
                    SELECT checkpoints.checkpoint_id FROM cairn.checkpoints
                    WHERE checkpoints.job_id = f.job_id
                      AND checkpoints.epoch = f.epoch
                      AND checkpoints.status IN ('CONFIRMED', 'SUBSUMED')
                    ORDER BY checkpoints.query_id, checkpoints.batch_id
                    LIMIT 1
                ) IS NOT NULL
            )
            OR EXISTS (
                SELECT FROM cairn.physical_files AS winner
                WHERE winner.sealed_at IS NOT NULL
                  AND cairn.is_same_upload(
                    f.file_id, f.retry_of, winner.file_id, winner.retry_of
                )
            )
        )
    )
);

COMMENT ON VIEW cairn.v_unneeded_files IS
    'One row per file that is not deleted and that nothing needs: why, and whether the next cleanup '
    'may condemn it.';
