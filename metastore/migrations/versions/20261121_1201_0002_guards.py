"""Guards in SQL: legal state transitions, identities that never change, exact live counters.

Each rule stands in the WHEN clause of its trigger and the functions only word the refusal, but for
deletions, whose rule looks at another table.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TRANSITIONS = {
    "checkpoints": (
        "IN_PROGRESS",
        [
            ("IN_PROGRESS", "COMPLETED"),
            ("IN_PROGRESS", "ABORTED"),
            ("COMPLETED", "CONFIRMED"),
            ("COMPLETED", "ABORTED"),
            ("CONFIRMED", "SUBSUMED"),
        ],
    ),
    "physical_files": (
        "WRITING",
        [
            ("WRITING", "SEALED"),
            ("WRITING", "CONDEMNED"),
            ("SEALED", "CONDEMNED"),
            ("CONDEMNED", "DELETED"),
        ],
    ),
    "segments": ("LIVE", [("LIVE", "DEAD")]),
    "maintenance_runs": (
        "PLANNED",
        [("PLANNED", "APPLIED"), ("PLANNED", "FAILED"), ("FAILED", "APPLIED")],
    ),
}

IDENTITIES = {
    "jobs": ["job_id", "name", "storage", "max_parallelism", "key_schema"],
    "runs": ["job_id", "epoch", "run_id", "parallelism"],
    "state_variables": ["job_id", "state_id", "name", "kind", "value_schema", "user_key_schema"],
    "checkpoints": [
        "job_id",
        "checkpoint_id",
        "epoch",
        "query_id",
        "batch_id",
        "parallelism",
        "parent_checkpoint",
    ],
    "physical_files": ["file_id", "job_id", "epoch", "path", "scope"],
    "segments": [
        "segment_id",
        "job_id",
        "file_id",
        "kind",
        "subtask",
        "key_groups",
        "offset_bytes",
        "size_bytes",
        "sha256",
        "entries",
        "first_checkpoint",
        "as_of_checkpoint",
    ],
    "subtask_acks": ["job_id", "checkpoint_id", "subtask"],
    "maintenance_runs": ["maintenance_run_id", "job_id", "action", "plan", "plan_sha256"],
    "deletions": ["file_id", "job_id", "path"],
}

FUNCTIONS = """
CREATE FUNCTION cairn.about(row_ jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT string_agg(replace(key, '_', ' ') || ' ' || value, ', ' ORDER BY key)
    FROM jsonb_each_text(row_)
    WHERE value IS NOT NULL
      AND key IN ('job_id', 'epoch', 'checkpoint_id', 'subtask', 'file_id', 'path',
                  'segment_id', 'state_id', 'maintenance_run_id')
$$;

CREATE FUNCTION cairn.refuse_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA001', MESSAGE =
        TG_TABLE_NAME || ': status '
        || CASE WHEN TG_OP = 'INSERT' THEN 'of a new row cannot be ' || NEW.status
           ELSE 'cannot go from ' || OLD.status || ' to ' || NEW.status END
        || ' [' || cairn.about(to_jsonb(NEW)) || ']';
END $$;

CREATE FUNCTION cairn.refuse_identity() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA002', MESSAGE =
        TG_TABLE_NAME || ': ' || TG_ARGV[0] || ' of a row never change ['
        || cairn.about(to_jsonb(OLD)) || ']';
END $$;

CREATE FUNCTION cairn.refuse_file() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
        'physical_files: ' || TG_ARGV[0] || ' [' || cairn.about(to_jsonb(NEW)) || ', '
        || NEW.status || ', ' || NEW.live_segments || ' live segments]';
END $$;

-- After the statement, which may itself condemn the file.
CREATE FUNCTION cairn.refuse_deletion() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    found text := (
        SELECT status FROM cairn.physical_files
        WHERE (file_id, job_id, path) = (NEW.file_id, NEW.job_id, NEW.path)
    );
BEGIN
    IF found IS DISTINCT FROM 'CONDEMNED' THEN
        RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
            'deletions: only a condemned file can be deleted, by its own job and path ['
            || cairn.about(to_jsonb(NEW)) || ', '
            || coalesce(found, 'no such file of that job and path') || ']';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION cairn.refuse_undone() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA004', MESSAGE =
        'deletions: a deletion that is done stays done [' || cairn.about(to_jsonb(OLD)) || ']';
END $$;
"""

# Files are updated in the order of their ids, so that two transactions do not deadlock.
COUNTERS = """
CREATE FUNCTION cairn.count_new_segments() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    file record;
BEGIN
    FOR file IN
        SELECT file_id, count(*) AS segments, sum(size_bytes) AS bytes
        FROM new_rows GROUP BY file_id ORDER BY file_id
    LOOP
        UPDATE cairn.physical_files
        SET live_segments = live_segments + file.segments, live_bytes = live_bytes + file.bytes
        WHERE file_id = file.file_id;
    END LOOP;
    RETURN NULL;
END $$;

CREATE FUNCTION cairn.count_dead_segments() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    file record;
BEGIN
    FOR file IN
        SELECT new_rows.file_id, count(*) AS segments, sum(new_rows.size_bytes) AS bytes
        FROM new_rows JOIN old_rows USING (segment_id)
        WHERE old_rows.status = 'LIVE' AND new_rows.status = 'DEAD'
        GROUP BY new_rows.file_id ORDER BY new_rows.file_id
    LOOP
        UPDATE cairn.physical_files
        SET live_segments = live_segments - file.segments, live_bytes = live_bytes - file.bytes
        WHERE file_id = file.file_id;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER count_new AFTER INSERT ON cairn.segments
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.count_new_segments();

CREATE TRIGGER count_dead AFTER UPDATE ON cairn.segments
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.count_dead_segments();
"""

FILE_RULES = """
CREATE TRIGGER guard_condemn BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (OLD.status <> 'CONDEMNED' AND NEW.status = 'CONDEMNED' AND NEW.live_segments > 0)
EXECUTE FUNCTION cairn.refuse_file('a file with live segments cannot be condemned');

CREATE TRIGGER guard_new_segments BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (NEW.live_segments > OLD.live_segments AND NEW.status IN ('CONDEMNED', 'DELETED'))
EXECUTE FUNCTION cairn.refuse_file('no segment can be made in a condemned or deleted file');

CREATE TRIGGER guard_size BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (OLD.size_bytes IS NOT NULL AND NEW.size_bytes IS DISTINCT FROM OLD.size_bytes)
EXECUTE FUNCTION cairn.refuse_identity('size_bytes');

CREATE TRIGGER guard_sealed_size BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (NEW.status = 'SEALED' AND NEW.size_bytes IS NULL)
EXECUTE FUNCTION cairn.refuse_file('a sealed file has a size');

CREATE TRIGGER guard_new_counters BEFORE INSERT ON cairn.physical_files FOR EACH ROW
WHEN (NEW.live_segments <> 0 OR NEW.live_bytes <> 0)
EXECUTE FUNCTION cairn.refuse_file('live counters follow the segments and start at 0');

CREATE TRIGGER guard_counters BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (
    (OLD.live_segments, OLD.live_bytes) IS DISTINCT FROM (NEW.live_segments, NEW.live_bytes)
    AND pg_trigger_depth() = 0
)
EXECUTE FUNCTION cairn.refuse_file('live counters follow the segments and cannot be set');

CREATE TRIGGER guard_condemned AFTER INSERT ON cairn.deletions FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_deletion();

CREATE TRIGGER guard_done BEFORE UPDATE ON cairn.deletions FOR EACH ROW
WHEN (OLD.done_at IS NOT NULL AND NEW.done_at IS NULL)
EXECUTE FUNCTION cairn.refuse_undone();
"""


def upgrade() -> None:
    op.execute(FUNCTIONS)
    for table, (initial, steps) in TRANSITIONS.items():
        legal = ", ".join(f"('{old}', '{new}')" for old, new in steps)
        op.execute(
            f"CREATE TRIGGER guard_new_status BEFORE INSERT ON cairn.{table} FOR EACH ROW "
            f"WHEN (NEW.status <> '{initial}') EXECUTE FUNCTION cairn.refuse_status()"
        )
        op.execute(
            f"CREATE TRIGGER guard_status BEFORE UPDATE ON cairn.{table} FOR EACH ROW "
            f"WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN ({legal})) "
            "EXECUTE FUNCTION cairn.refuse_status()"
        )
    for table, columns in IDENTITIES.items():
        old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
        op.execute(
            f"CREATE TRIGGER guard_identity BEFORE UPDATE ON cairn.{table} FOR EACH ROW "
            f"WHEN (({old}) IS DISTINCT FROM ({new})) "
            f"EXECUTE FUNCTION cairn.refuse_identity('{', '.join(columns)}')"
        )
    op.execute(COUNTERS)
    op.execute(FILE_RULES)
