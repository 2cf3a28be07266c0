-- Grain: one row per pin or savepoint of a checkpoint, removed ones too.
-- Columns: job_id, job_name, pin_id, checkpoint_id, query_id and batch_id (Spark's names for it),
--   kind (pin or savepoint), name (as given; null without), manifest (URL of the checkpoint's
--   manifest; null until it is written), created_at, removed_at (null: the checkpoint stays),
--   expires_at (when the next housekeeping after it removes the pin; null: only somebody does).
-- Read by: `cairn pins`, and by people who ask why an old checkpoint is still there.
CREATE OR REPLACE VIEW cairn.v_pins AS
SELECT
    p.job_id,
    j.name AS job_name,
    p.pin_id,
    p.checkpoint_id,
    c.query_id,
    c.batch_id,
    p.kind,
    p.name,
    j.storage || '/' || m.path AS manifest,
    p.created_at,
    p.removed_at,
    p.expires_at
FROM cairn.pins AS p
JOIN cairn.jobs AS j ON j.job_id = p.job_id
JOIN cairn.checkpoints AS c ON c.job_id = p.job_id AND c.checkpoint_id = p.checkpoint_id
LEFT JOIN LATERAL (
    SELECT physical_files.path
    FROM cairn.placed_segments AS s
    JOIN cairn.physical_files ON physical_files.file_id = s.file_id
    WHERE s.job_id = p.job_id
      AND s.first_checkpoint = p.checkpoint_id
      AND s.kind = 'manifest'
      AND s.status = 'LIVE'
    LIMIT 1
) AS m ON TRUE;

COMMENT ON VIEW cairn.v_pins IS
    'One row per pin or savepoint, removed ones too: its checkpoint, Spark''s names for it, and the '
    'URL of its manifest.';
