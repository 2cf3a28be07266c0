-- Identity: what a row says of itself never changes.
CREATE OR REPLACE FUNCTION cairn.refuse_identity() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA002', MESSAGE =
        TG_TABLE_NAME || ': ' || TG_ARGV[0] || ' of a row never change ['
        || cairn.about(to_jsonb(OLD)) || ']';
END $$;

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.jobs FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.storage, OLD.max_parallelism, OLD.key_schema, OLD.tenant)
    IS DISTINCT FROM
    (NEW.job_id, NEW.storage, NEW.max_parallelism, NEW.key_schema, NEW.tenant)
)
EXECUTE FUNCTION cairn.refuse_identity('job_id, storage, max_parallelism, key_schema, tenant');

-- Who owns a root is told by these rows and by objects in storage, which never change either.
CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.metastore FOR EACH ROW
WHEN (OLD.metastore_id <> NEW.metastore_id)
EXECUTE FUNCTION cairn.refuse_identity('metastore_id');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.ownerships FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.generation, OLD.ownership_id, OLD.database_id, OLD.timeline, OLD.began_at)
    IS DISTINCT FROM
    (NEW.job_id, NEW.generation, NEW.ownership_id, NEW.database_id, NEW.timeline, NEW.began_at)
    OR (OLD.written_at IS NOT NULL AND NEW.written_at IS DISTINCT FROM OLD.written_at)
)
EXECUTE FUNCTION cairn.refuse_identity('all but written_at, once set too,');

-- Epochs fence, ids of checkpoints are given once, and a job has one query.
CREATE OR REPLACE TRIGGER guard_backwards BEFORE UPDATE ON cairn.jobs FOR EACH ROW
WHEN (
    NEW.current_epoch < OLD.current_epoch
    OR NEW.next_checkpoint_id < OLD.next_checkpoint_id
    OR (OLD.query_id IS NOT NULL AND NEW.query_id IS DISTINCT FROM OLD.query_id)
    OR (OLD.time_mode IS NOT NULL AND NEW.time_mode IS DISTINCT FROM OLD.time_mode)
)
EXECUTE FUNCTION cairn.refuse_identity(
    'current_epoch and next_checkpoint_id (which grow), query_id and time_mode, once set,'
);

CREATE OR REPLACE TRIGGER guard_started BEFORE UPDATE ON cairn.runs FOR EACH ROW
WHEN (OLD.started_at IS NOT NULL AND NEW.started_at IS DISTINCT FROM OLD.started_at)
EXECUTE FUNCTION cairn.refuse_identity('started_at, once set,');

CREATE OR REPLACE TRIGGER guard_moments BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (
    (OLD.completed_at IS NOT NULL AND NEW.completed_at IS DISTINCT FROM OLD.completed_at)
    OR (OLD.confirmed_at IS NOT NULL AND NEW.confirmed_at IS DISTINCT FROM OLD.confirmed_at)
    OR (OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at)
)
EXECUTE FUNCTION cairn.refuse_identity('completed_at, confirmed_at and ended_at, once set,');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.runs FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.epoch, OLD.run_id, OLD.parallelism)
    IS DISTINCT FROM
    (NEW.job_id, NEW.epoch, NEW.run_id, NEW.parallelism)
)
EXECUTE FUNCTION cairn.refuse_identity('job_id, epoch, run_id, parallelism');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.state_variables FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.state_id, OLD.name, OLD.kind, OLD.user_key_schema, OLD.has_ttl)
    IS DISTINCT FROM
    (NEW.job_id, NEW.state_id, NEW.name, NEW.kind, NEW.user_key_schema, NEW.has_ttl)
)
EXECUTE FUNCTION cairn.refuse_identity('job_id, state_id, name, kind, user_key_schema, has_ttl');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.checkpoint_id, OLD.epoch, OLD.query_id, OLD.batch_id, OLD.parallelism,
     OLD.parent_checkpoint, OLD.processing_ms, OLD.watermark_ms, OLD.max_event_ms)
    IS DISTINCT FROM
    (NEW.job_id, NEW.checkpoint_id, NEW.epoch, NEW.query_id, NEW.batch_id, NEW.parallelism,
     NEW.parent_checkpoint, NEW.processing_ms, NEW.watermark_ms, NEW.max_event_ms)
)
EXECUTE FUNCTION cairn.refuse_identity(
    'job_id, checkpoint_id, epoch, query_id, batch_id, parallelism, parent_checkpoint, '
    'processing_ms, watermark_ms, max_event_ms'
);

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.pins FOR EACH ROW
WHEN (
    (OLD.pin_id, OLD.job_id, OLD.checkpoint_id, OLD.kind, OLD.name)
    IS DISTINCT FROM
    (NEW.pin_id, NEW.job_id, NEW.checkpoint_id, NEW.kind, NEW.name)
)
EXECUTE FUNCTION cairn.refuse_identity('pin_id, job_id, checkpoint_id, kind, name');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.directories FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.path, OLD.scope, OLD.subtask, OLD.parallelism, OLD.tm_id)
    IS DISTINCT FROM
    (NEW.job_id, NEW.path, NEW.scope, NEW.subtask, NEW.parallelism, NEW.tm_id)
)
EXECUTE FUNCTION cairn.refuse_identity('job_id, path, scope, subtask, parallelism, tm_id');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.placed_segments FOR EACH ROW
WHEN (
    (OLD.segment_id, OLD.job_id, OLD.file_id, OLD.kind, OLD.subtask, OLD.key_groups,
     OLD.offset_bytes, OLD.size_bytes, OLD.sha256, OLD.index_size_bytes, OLD.index_sha256, OLD.entries,
     OLD.first_checkpoint, OLD.as_of_checkpoint, OLD.sequence_number)
    IS DISTINCT FROM
    (NEW.segment_id, NEW.job_id, NEW.file_id, NEW.kind, NEW.subtask, NEW.key_groups,
     NEW.offset_bytes, NEW.size_bytes, NEW.sha256, NEW.index_size_bytes, NEW.index_sha256, NEW.entries,
     NEW.first_checkpoint, NEW.as_of_checkpoint, NEW.sequence_number)
)
EXECUTE FUNCTION cairn.refuse_identity(
    'segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256, '
    'index_size_bytes, index_sha256, entries, first_checkpoint, as_of_checkpoint, sequence_number'
);

-- Of a group commit only the status changes, and which of its subtasks were replaced.
CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.group_commits FOR EACH ROW
WHEN (
    (OLD.commit_id, OLD.job_id, OLD.checkpoint_id, OLD.file_id, OLD.tm_id, OLD.parallelism,
     OLD.max_parallelism, OLD.subtasks, OLD.attempt_ids, OLD.task_attempts, OLD.input_rows,
     OLD.late_rows, OLD.max_event_ms, OLD.restore_ms, OLD.segment_ids, OLD.segment_subtasks,
     OLD.segment_kinds, OLD.sequence_numbers, OLD.offsets_bytes, OLD.sizes_bytes, OLD.sha256s,
     OLD.index_sizes_bytes, OLD.index_sha256s, OLD.entries, OLD.key_groups, OLD.uploaded_files, OLD.uploaded_segments, OLD.uploaded_bytes,
     OLD.requests, OLD.retries, OLD.hedges, OLD.hedge_wins, OLD.failed_attempts,
     OLD.winning_attempt, OLD.failed_uploads, OLD.queue_size, OLD.wait_ms, OLD.upload_ms,
     OLD.longest_request_ms, OLD.pool_wait_ms, OLD.acked_at)
    IS DISTINCT FROM
    (NEW.commit_id, NEW.job_id, NEW.checkpoint_id, NEW.file_id, NEW.tm_id, NEW.parallelism,
     NEW.max_parallelism, NEW.subtasks, NEW.attempt_ids, NEW.task_attempts, NEW.input_rows,
     NEW.late_rows, NEW.max_event_ms, NEW.restore_ms, NEW.segment_ids, NEW.segment_subtasks,
     NEW.segment_kinds, NEW.sequence_numbers, NEW.offsets_bytes, NEW.sizes_bytes, NEW.sha256s,
     NEW.index_sizes_bytes, NEW.index_sha256s, NEW.entries, NEW.key_groups, NEW.uploaded_files, NEW.uploaded_segments, NEW.uploaded_bytes,
     NEW.requests, NEW.retries, NEW.hedges, NEW.hedge_wins, NEW.failed_attempts,
     NEW.winning_attempt, NEW.failed_uploads, NEW.queue_size, NEW.wait_ms, NEW.upload_ms,
     NEW.longest_request_ms, NEW.pool_wait_ms, NEW.acked_at)
)
EXECUTE FUNCTION cairn.refuse_identity('all but status and replaced_subtasks');

CREATE OR REPLACE TRIGGER guard_replaced BEFORE UPDATE ON cairn.group_commits FOR EACH ROW
WHEN (NOT OLD.replaced_subtasks <@ NEW.replaced_subtasks)
EXECUTE FUNCTION cairn.refuse_identity('replaced_subtasks');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.maintenance_runs FOR EACH ROW
WHEN (
    (OLD.maintenance_run_id, OLD.job_id, OLD.action, OLD.plan, OLD.plan_sha256,
     OLD.planned_files, OLD.planned_bytes)
    IS DISTINCT FROM
    (NEW.maintenance_run_id, NEW.job_id, NEW.action, NEW.plan, NEW.plan_sha256,
     NEW.planned_files, NEW.planned_bytes)
)
EXECUTE FUNCTION cairn.refuse_identity(
    'maintenance_run_id, job_id, action, plan, plan_sha256, planned_files, planned_bytes'
);

-- Who decided what is told by these rows alone; the rest of a reason is counted as it continues.
CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.maintenance_decisions FOR EACH ROW
WHEN (
    (OLD.maintenance_run_id, OLD.decision, OLD.reason, OLD.path, OLD.job_id, OLD.decided_at)
    IS DISTINCT FROM
    (NEW.maintenance_run_id, NEW.decision, NEW.reason, NEW.path, NEW.job_id, NEW.decided_at)
    OR NEW.objects < OLD.objects
)
EXECUTE FUNCTION cairn.refuse_identity('all but objects, which grows,');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.deletions FOR EACH ROW
WHEN (
    (OLD.file_id, OLD.job_id, OLD.path)
    IS DISTINCT FROM
    (NEW.file_id, NEW.job_id, NEW.path)
)
EXECUTE FUNCTION cairn.refuse_identity('file_id, job_id, path');

CREATE OR REPLACE TRIGGER guard_dropped BEFORE UPDATE ON cairn.state_variables FOR EACH ROW
WHEN (OLD.dropped_at IS NOT NULL AND NEW.dropped_at IS DISTINCT FROM OLD.dropped_at)
EXECUTE FUNCTION cairn.refuse_identity('dropped_at, once set,');

CREATE OR REPLACE TRIGGER guard_removed BEFORE UPDATE ON cairn.pins FOR EACH ROW
WHEN (OLD.removed_at IS NOT NULL AND NEW.removed_at IS DISTINCT FROM OLD.removed_at)
EXECUTE FUNCTION cairn.refuse_identity('removed_at, once set,');

CREATE OR REPLACE TRIGGER guard_identity BEFORE UPDATE ON cairn.run_requests FOR EACH ROW
WHEN (
    (
        OLD.request_id, OLD.job_id, OLD.kind, OLD.parallelism, OLD.savepoint, OLD.requested_by,
        OLD.requested_at
    ) IS DISTINCT FROM (
        NEW.request_id, NEW.job_id, NEW.kind, NEW.parallelism, NEW.savepoint, NEW.requested_by,
        NEW.requested_at
    )
)
EXECUTE FUNCTION cairn.refuse_identity('all that was asked');
