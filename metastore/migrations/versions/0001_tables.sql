-- Tables of the baseline, exactly those of `metastore.models` then.

CREATE TABLE cairn.metastore (
    is_only BOOLEAN DEFAULT 'true' NOT NULL,
    metastore_id UUID DEFAULT gen_random_uuid() NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_metastore PRIMARY KEY (is_only),
    CONSTRAINT ck_metastore__one_row CHECK (is_only)
);

INSERT INTO cairn.metastore DEFAULT VALUES;

CREATE TABLE cairn.tenants (
    name TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_tenants PRIMARY KEY (name)
);

CREATE TABLE cairn.jobs (
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT,
    storage TEXT NOT NULL,
    max_parallelism BIGINT NOT NULL,
    num_retained BIGINT NOT NULL,
    key_schema JSONB NOT NULL,
    time_mode TEXT,
    query_id TEXT,
    current_epoch BIGINT DEFAULT '0' NOT NULL,
    next_checkpoint_id BIGINT DEFAULT '1' NOT NULL,
    file_retention_ms BIGINT DEFAULT '3600000' NOT NULL,
    keeps_manifest BOOLEAN DEFAULT 'false' NOT NULL,
    history_retention_ms BIGINT DEFAULT '604800000' NOT NULL,
    history_max_checkpoints BIGINT DEFAULT '500000' NOT NULL,
    materialized_by VARCHAR(16) DEFAULT 'stream' NOT NULL,
    materialize_interval_ms BIGINT DEFAULT '600000' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    former_name TEXT,
    dropped_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_jobs PRIMARY KEY (job_id),
    CONSTRAINT ck_jobs__num_retained_enough CHECK (num_retained >= 2),
    CONSTRAINT ck_jobs__file_retention_sane CHECK (file_retention_ms BETWEEN 0 AND 315360000000),
    CONSTRAINT ck_jobs__history_long_enough
        CHECK (history_retention_ms >= 3600000 AND history_max_checkpoints >= 1000),
    CONSTRAINT ck_jobs__materialized_by_known CHECK (materialized_by IN ('stream', 'maintenance')),
    CONSTRAINT ck_jobs__materialize_interval_sane CHECK (materialize_interval_ms > 0),
    CONSTRAINT ck_jobs__job_id_form CHECK (job_id ~ '^[a-z0-9][a-z0-9-]{0,39}-[0-9a-f]{8}$'),
    CONSTRAINT ck_jobs__storage_form CHECK (
        storage ~ '^(file:///|file://(/[!-.0-~]+)+|s3://[A-Za-z0-9][A-Za-z0-9._-]*(/[^/?#]+)*)$'
        AND storage !~* '/\.{1,2}(/|$)|%(2e|2f|00)|[\u0001-\u001f\u007f]'
    ),
    CONSTRAINT uq_jobs__name UNIQUE (name),
    CONSTRAINT fk_jobs__tenant FOREIGN KEY (tenant) REFERENCES cairn.tenants (name)
);

CREATE TABLE cairn.ownerships (
    job_id TEXT NOT NULL,
    generation BIGINT NOT NULL,
    ownership_id UUID NOT NULL,
    database_id TEXT NOT NULL,
    timeline BIGINT NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE,
    confirmed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_ownerships PRIMARY KEY (job_id, generation),
    CONSTRAINT ck_ownerships__counted CHECK (generation > 0),
    CONSTRAINT fk_ownerships__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id),
    CONSTRAINT uq_ownerships__ownership_id UNIQUE (ownership_id)
);

CREATE TABLE cairn.maintenance_runs (
    maintenance_run_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    action VARCHAR(16) NOT NULL,
    plan JSONB NOT NULL,
    plan_sha256 TEXT NOT NULL,
    planned_files BIGINT DEFAULT '0' NOT NULL,
    planned_bytes BIGINT DEFAULT '0' NOT NULL,
    status VARCHAR(16) DEFAULT 'PLANNED' NOT NULL,
    result JSONB,
    planned_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    holder UUID,
    former_holders UUID[] DEFAULT '{}' NOT NULL,
    leased_until TIMESTAMP WITH TIME ZONE,
    breakers JSONB DEFAULT '[]' NOT NULL,
    passed_by TEXT,
    passed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_maintenance_runs PRIMARY KEY (maintenance_run_id),
    CONSTRAINT ck_maintenance_runs__status_known
        CHECK (status IN ('PLANNED', 'RUNNING', 'APPLIED', 'FAILED', 'REFUSED')),
    CONSTRAINT ck_maintenance_runs__action_known
        CHECK (action IN ('subsumption', 'materialization', 'compaction', 'orphan_sweep', 'scrub',
            'heal', 'housekeeping')),
    CONSTRAINT ck_maintenance_runs__running_is_leased
        CHECK (status <> 'RUNNING' OR (holder IS NOT NULL AND leased_until IS NOT NULL)),
    CONSTRAINT ck_maintenance_runs__breakers_passed
        CHECK (status IN ('REFUSED', 'FAILED') OR breakers = '[]' OR passed_by IS NOT NULL),
    CONSTRAINT fk_maintenance_runs__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE INDEX ix_maintenance_runs__planned
    ON cairn.maintenance_runs (job_id, planned_at);

CREATE TABLE cairn.good_runs (
    job_id TEXT NOT NULL,
    action VARCHAR(16) NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_good_runs PRIMARY KEY (job_id, action),
    CONSTRAINT ck_good_runs__action_known
        CHECK (action IN ('subsumption', 'materialization', 'compaction', 'orphan_sweep', 'scrub',
            'heal', 'housekeeping')),
    CONSTRAINT fk_good_runs__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE TABLE cairn.maintenance_decisions (
    maintenance_run_id UUID NOT NULL,
    decision VARCHAR(16) NOT NULL,
    reason TEXT NOT NULL,
    path TEXT DEFAULT '' NOT NULL,
    job_id TEXT NOT NULL,
    objects BIGINT DEFAULT '1' NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_maintenance_decisions PRIMARY KEY (maintenance_run_id, decision, reason, path),
    CONSTRAINT ck_maintenance_decisions__decision_known
        CHECK (decision IN ('SKIPPED', 'REFUSED', 'PASSED')),
    CONSTRAINT fk_maintenance_decisions__maintenance_run_id FOREIGN KEY (maintenance_run_id)
        REFERENCES cairn.maintenance_runs (maintenance_run_id),
    CONSTRAINT fk_maintenance_decisions__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE TABLE cairn.runs (
    job_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    run_id UUID NOT NULL,
    parallelism BIGINT NOT NULL,
    supervisor_id UUID,
    query_id TEXT,
    watermark_delays_ms BIGINT[] DEFAULT '{}' NOT NULL,
    watermark_job_id TEXT,
    state_ids BIGINT[] DEFAULT '{}' NOT NULL,
    deleted_state_ids BIGINT[] DEFAULT '{}' NOT NULL,
    layouts JSONB DEFAULT '{}' NOT NULL,
    time_mode TEXT,
    num_retained BIGINT,
    file_retention_ms BIGINT,
    keeps_manifest BOOLEAN,
    history_retention_ms BIGINT,
    history_max_checkpoints BIGINT,
    open_file_bytes BIGINT,
    materialized_by VARCHAR(16),
    materialize_interval_ms BIGINT,
    registered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_runs PRIMARY KEY (job_id, epoch),
    CONSTRAINT ck_runs__materialized_by_known CHECK (materialized_by IN ('stream', 'maintenance')),
    CONSTRAINT fk_runs__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id),
    CONSTRAINT uq_runs__run_id UNIQUE (run_id)
);

CREATE TABLE cairn.state_variables (
    job_id TEXT NOT NULL,
    state_id SMALLINT NOT NULL,
    name TEXT NOT NULL,
    kind VARCHAR(16) NOT NULL,
    value_schema JSONB NOT NULL,
    user_key_schema JSONB,
    has_ttl BOOLEAN DEFAULT 'false' NOT NULL,
    dropped_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_state_variables PRIMARY KEY (job_id, state_id),
    CONSTRAINT ck_state_variables__kind_known
        CHECK (kind IN ('value', 'list', 'map', 'operator_list', 'operator_union')),
    CONSTRAINT fk_state_variables__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE UNIQUE INDEX uq_state_variables__name ON cairn.state_variables (job_id, name)
    WHERE dropped_at IS NULL;

CREATE TABLE cairn.run_requests (
    request_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    kind VARCHAR(16) NOT NULL,
    parallelism BIGINT,
    instead_of BIGINT,
    overruled_at TIMESTAMP WITH TIME ZONE,
    savepoint TEXT,
    requested_by TEXT DEFAULT SESSION_USER NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    status VARCHAR(16) DEFAULT 'OPEN' NOT NULL,
    taken_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    checkpoint_id BIGINT,
    message TEXT,
    CONSTRAINT pk_run_requests PRIMARY KEY (request_id),
    CONSTRAINT ck_run_requests__kind_known CHECK (kind IN ('rescale', 'stop')),
    CONSTRAINT ck_run_requests__status_known
        CHECK (status IN ('OPEN', 'TAKEN', 'DONE', 'FAILED', 'WITHDRAWN')),
    CONSTRAINT ck_run_requests__rescale_has_parallelism CHECK (
        (kind = 'rescale') = (parallelism IS NOT NULL) AND parallelism > 0 IS NOT FALSE
    ),
    CONSTRAINT fk_run_requests__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE UNIQUE INDEX uq_run_requests__open ON cairn.run_requests (job_id)
    WHERE status IN ('OPEN', 'TAKEN');

CREATE INDEX ix_run_requests__job_id_requested_at ON cairn.run_requests (job_id, requested_at);

CREATE TABLE cairn.checkpoints (
    job_id TEXT NOT NULL,
    checkpoint_id BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    query_id TEXT NOT NULL,
    batch_id BIGINT NOT NULL,
    parallelism BIGINT NOT NULL,
    parent_checkpoint BIGINT,
    processing_ms BIGINT DEFAULT '0' NOT NULL,
    watermark_ms BIGINT DEFAULT '0' NOT NULL,
    max_event_ms BIGINT[] DEFAULT '{}' NOT NULL,
    status VARCHAR(16) DEFAULT 'IN_PROGRESS' NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    completed_at TIMESTAMP WITH TIME ZONE,
    confirmed_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_checkpoints PRIMARY KEY (job_id, checkpoint_id),
    CONSTRAINT fk_checkpoints__job_id_epoch FOREIGN KEY (job_id, epoch)
        REFERENCES cairn.runs (job_id, epoch),
    CONSTRAINT uq_checkpoints__job_id_epoch_query_id_batch_id
        UNIQUE (job_id, epoch, query_id, batch_id),
    CONSTRAINT ck_checkpoints__status_known
        CHECK (status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED', 'SUBSUMED', 'ABORTED'))
);

CREATE INDEX ix_checkpoints__job_id_query_id_batch_id
    ON cairn.checkpoints (job_id, query_id, batch_id);

CREATE INDEX ix_checkpoints__ended ON cairn.checkpoints (job_id, ended_at)
    WHERE status IN ('SUBSUMED', 'ABORTED');

CREATE INDEX ix_checkpoints__retained ON cairn.checkpoints (job_id, checkpoint_id)
    WHERE status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED');

CREATE TABLE cairn.directories (
    job_id TEXT NOT NULL,
    path TEXT NOT NULL,
    scope VARCHAR(16) NOT NULL,
    subtask BIGINT,
    parallelism BIGINT,
    tm_id TEXT,
    status VARCHAR(16) DEFAULT 'CLAIMED' NOT NULL,
    epoch BIGINT NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    unclaimed_at TIMESTAMP WITH TIME ZONE,
    deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_directories PRIMARY KEY (job_id, path),
    CONSTRAINT fk_directories__job_id_epoch FOREIGN KEY (job_id, epoch)
        REFERENCES cairn.runs (job_id, epoch),
    CONSTRAINT ck_directories__path_form CHECK (
        starts_with(path, job_id || '/')
        AND substr(path, length(job_id) + 2) ~ '^(shared/subtask-[0-9]{1,19}-[0-9]{1,19}|taskmanager-owned/[A-Za-z0-9_-]{1,100}|maintenance/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$'
    ),
    CONSTRAINT ck_directories__status_known CHECK (status IN ('CLAIMED', 'UNCLAIMED', 'DELETED')),
    CONSTRAINT ck_directories__scope_known
        CHECK (scope IN ('shared', 'taskmanager', 'maintenance'))
);

CREATE TABLE cairn.materializations (
    materialization_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    subtask BIGINT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    error TEXT,
    kind VARCHAR(16),
    as_of_checkpoint BIGINT,
    segments BIGINT DEFAULT '0' NOT NULL,
    entries BIGINT DEFAULT '0' NOT NULL,
    size_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_materializations PRIMARY KEY (materialization_id),
    CONSTRAINT fk_materializations__job_id_epoch FOREIGN KEY (job_id, epoch)
        REFERENCES cairn.runs (job_id, epoch),
    CONSTRAINT ck_materializations__kind_known
        CHECK (kind IN ('changelog', 'keyed_full', 'keyed_increment', 'operator',
            'channel', 'manifest'))
);

CREATE INDEX ix_materializations__job_id_subtask_started_at
    ON cairn.materializations (job_id, subtask, started_at);

CREATE TABLE cairn.physical_files (
    file_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    path TEXT COLLATE "C" NOT NULL,
    scope VARCHAR(16) NOT NULL,
    batch_id BIGINT,
    retry_of UUID,
    materialization_id UUID,
    maintenance_run_id UUID,
    status VARCHAR(16) DEFAULT 'WRITING' NOT NULL,
    size_bytes BIGINT,
    live_bytes BIGINT DEFAULT '0' NOT NULL,
    live_segments BIGINT DEFAULT '0' NOT NULL,
    dead_bytes BIGINT DEFAULT '0' NOT NULL,
    is_empty BOOLEAN GENERATED ALWAYS AS (live_segments = 0) STORED NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    sealed_at TIMESTAMP WITH TIME ZONE,
    condemned_at TIMESTAMP WITH TIME ZONE,
    deleted_at TIMESTAMP WITH TIME ZONE,
    verified_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_physical_files PRIMARY KEY (file_id),
    CONSTRAINT fk_physical_files__job_id_epoch FOREIGN KEY (job_id, epoch)
        REFERENCES cairn.runs (job_id, epoch),
    CONSTRAINT uq_physical_files__job_id_path UNIQUE (job_id, path),
    CONSTRAINT ck_physical_files__status_known
        CHECK (status IN ('WRITING', 'SEALED', 'CONDEMNED', 'DELETED')),
    CONSTRAINT ck_physical_files__scope_known
        CHECK (scope IN ('shared', 'taskmanager', 'maintenance')),
    CONSTRAINT ck_physical_files__path_form CHECK (
        starts_with(path, job_id || '/')
        AND substr(path, length(job_id) + 2) ~ '^((shared/subtask-[0-9]{1,19}-[0-9]{1,19}|taskmanager-owned/[A-Za-z0-9_-]{1,100}|maintenance/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[.]seg|exclusive/[0-9]{1,19}-[0-9]{1,19}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[.]seg|chk-[0-9]{1,19}/_metadata)$'
    ),
    CONSTRAINT ck_physical_files__live_counted CHECK (live_bytes >= 0 AND live_segments >= 0),
    CONSTRAINT fk_physical_files__retry_of FOREIGN KEY (retry_of)
        REFERENCES cairn.physical_files (file_id),
    CONSTRAINT fk_physical_files__maintenance_run_id FOREIGN KEY (maintenance_run_id)
        REFERENCES cairn.maintenance_runs (maintenance_run_id)
);

CREATE INDEX ix_physical_files__maintenance_run_id ON cairn.physical_files (maintenance_run_id)
    WHERE maintenance_run_id IS NOT NULL;

CREATE INDEX ix_physical_files__deleted ON cairn.physical_files (job_id, deleted_at)
    WHERE status = 'DELETED';

CREATE INDEX ix_physical_files__retry_of ON cairn.physical_files (retry_of)
    WHERE retry_of IS NOT NULL;

CREATE INDEX ix_physical_files__undeleted ON cairn.physical_files (job_id, file_id)
    WHERE status <> 'DELETED';

CREATE INDEX ix_physical_files__writing ON cairn.physical_files (job_id, file_id)
    WHERE status = 'WRITING';

CREATE INDEX ix_physical_files__empty ON cairn.physical_files (job_id, file_id)
    WHERE status = 'SEALED' AND is_empty;

CREATE INDEX ix_physical_files__wasteful ON cairn.physical_files (job_id, dead_bytes, file_id)
    WHERE status = 'SEALED' AND dead_bytes > 0;

CREATE TABLE cairn.damaged_segments (
    file_id UUID NOT NULL,
    segment_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    damage VARCHAR(16) NOT NULL,
    found_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    resolved_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_damaged_segments PRIMARY KEY (file_id, segment_id),
    CONSTRAINT fk_damaged_segments__file_id FOREIGN KEY (file_id)
        REFERENCES cairn.physical_files (file_id),
    CONSTRAINT fk_damaged_segments__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id),
    CONSTRAINT ck_damaged_segments__damage_known CHECK (damage IN ('missing', 'short', 'corrupt'))
);

CREATE TABLE cairn.upload_totals (
    job_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    tm_id TEXT NOT NULL,
    commits BIGINT NOT NULL,
    requests BIGINT NOT NULL,
    failed_uploads BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    upload_ms BIGINT NOT NULL,
    winning_attempt BIGINT NOT NULL,
    segments BIGINT NOT NULL,
    pool_wait_ms BIGINT NOT NULL,
    CONSTRAINT pk_upload_totals PRIMARY KEY (job_id, epoch, tm_id),
    CONSTRAINT fk_upload_totals__job_id_epoch FOREIGN KEY (job_id, epoch)
        REFERENCES cairn.runs (job_id, epoch)
);

CREATE TABLE cairn.deletions (
    file_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    path TEXT NOT NULL,
    maintenance_run_id UUID NOT NULL,
    attempts BIGINT DEFAULT '0' NOT NULL,
    last_error TEXT,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    done_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_deletions PRIMARY KEY (file_id),
    CONSTRAINT fk_deletions__file_id FOREIGN KEY (file_id) REFERENCES cairn.physical_files (file_id),
    CONSTRAINT fk_deletions__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id),
    CONSTRAINT fk_deletions__maintenance_run_id FOREIGN KEY (maintenance_run_id)
        REFERENCES cairn.maintenance_runs (maintenance_run_id)
);

CREATE INDEX ix_deletions__maintenance_run_id ON cairn.deletions (maintenance_run_id);

CREATE INDEX ix_deletions__open ON cairn.deletions (job_id, requested_at, file_id)
    WHERE done_at IS NULL;

CREATE TABLE cairn.quarantined_objects (
    quarantine_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    path TEXT COLLATE "C" NOT NULL,
    upload_id TEXT DEFAULT '' NOT NULL,
    reason TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    version TEXT NOT NULL,
    modified_at TIMESTAMP WITH TIME ZONE NOT NULL,
    maintenance_run_id UUID NOT NULL,
    status VARCHAR(16) DEFAULT 'QUARANTINED' NOT NULL,
    quarantined_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    quarantined_until TIMESTAMP WITH TIME ZONE NOT NULL,
    condemned_at TIMESTAMP WITH TIME ZONE,
    restored_at TIMESTAMP WITH TIME ZONE,
    released_at TIMESTAMP WITH TIME ZONE,
    deleted_at TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    CONSTRAINT pk_quarantined_objects PRIMARY KEY (quarantine_id),
    CONSTRAINT ck_quarantined_objects__status_known
        CHECK (status IN ('QUARANTINED', 'CONDEMNED', 'DELETED', 'RESTORED', 'RELEASED')),
    CONSTRAINT ck_quarantined_objects__below_job CHECK (
        starts_with(path, job_id || '/') AND NOT starts_with(path, job_id || '/owner/')
    ),
    CONSTRAINT ck_quarantined_objects__kept_for_a_while CHECK (quarantined_until > quarantined_at),
    CONSTRAINT fk_quarantined_objects__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE UNIQUE INDEX uq_quarantined_objects__open
    ON cairn.quarantined_objects (job_id, path, upload_id)
    WHERE status IN ('QUARANTINED', 'CONDEMNED', 'RESTORED');

CREATE INDEX ix_quarantined_objects__due ON cairn.quarantined_objects (job_id, quarantined_until)
    WHERE status IN ('QUARANTINED', 'CONDEMNED');

CREATE INDEX ix_quarantined_objects__over
    ON cairn.quarantined_objects (job_id, coalesce(deleted_at, released_at))
    WHERE status IN ('DELETED', 'RELEASED');

CREATE TABLE cairn.pins (
    pin_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    checkpoint_id BIGINT NOT NULL,
    kind VARCHAR(16) NOT NULL,
    name TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    removed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_pins PRIMARY KEY (pin_id),
    CONSTRAINT fk_pins__job_id_checkpoint_id FOREIGN KEY (job_id, checkpoint_id)
        REFERENCES cairn.checkpoints (job_id, checkpoint_id),
    CONSTRAINT ck_pins__kind_known CHECK (kind IN ('pin', 'savepoint'))
);

CREATE INDEX ix_pins__job_id_checkpoint_id ON cairn.pins (job_id, checkpoint_id);

CREATE TABLE cairn.placed_segments (
    segment_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    file_id UUID NOT NULL,
    kind VARCHAR(16) NOT NULL,
    subtask BIGINT NOT NULL,
    key_groups INT4RANGE NOT NULL,
    offset_bytes BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    index_size_bytes INTEGER,
    index_sha256 TEXT,
    entries BIGINT NOT NULL,
    first_checkpoint BIGINT NOT NULL,
    as_of_checkpoint BIGINT NOT NULL,
    sequence_number SMALLINT DEFAULT '0' NOT NULL,
    released_checkpoint BIGINT,
    status VARCHAR(16) DEFAULT 'LIVE' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_placed_segments PRIMARY KEY (segment_id),
    CONSTRAINT ck_placed_segments__status_known CHECK (status IN ('LIVE', 'DEAD')),
    CONSTRAINT ck_placed_segments__kind_known
        CHECK (kind IN ('changelog', 'keyed_full', 'keyed_increment', 'operator',
            'channel', 'manifest')),
    CONSTRAINT ck_placed_segments__range_sane CHECK (offset_bytes >= 0 AND size_bytes > 0),
    CONSTRAINT ck_placed_segments__index_inside CHECK (
        (index_size_bytes IS NULL) = (index_sha256 IS NULL)
        AND index_size_bytes > 0 AND index_size_bytes < size_bytes
    ),
    CONSTRAINT ck_placed_segments__released_after_first
        CHECK (released_checkpoint IS NULL OR released_checkpoint >= first_checkpoint),
    CONSTRAINT ck_placed_segments__exclusive_to_one
        CHECK (kind NOT IN ('operator', 'channel', 'manifest')
            OR (released_checkpoint IS NOT NULL AND released_checkpoint <= first_checkpoint + 1)),
    CONSTRAINT fk_placed_segments__file_id FOREIGN KEY (file_id) REFERENCES cairn.physical_files (file_id)
);

CREATE INDEX ix_placed_segments__file_id ON cairn.placed_segments (file_id);

CREATE INDEX ix_placed_segments__job_id_first_checkpoint
    ON cairn.placed_segments (job_id, first_checkpoint);

CREATE INDEX ix_placed_segments__key_groups ON cairn.placed_segments USING gist (key_groups)
    WHERE status = 'LIVE';

CREATE INDEX ix_placed_segments__live ON cairn.placed_segments (job_id, first_checkpoint) WHERE status = 'LIVE';

CREATE INDEX ix_placed_segments__manifests ON cairn.placed_segments (job_id, first_checkpoint)
    WHERE kind = 'manifest' AND status = 'LIVE';

CREATE UNIQUE INDEX uq_placed_segments__operator ON cairn.placed_segments (job_id, first_checkpoint, subtask)
    WHERE kind = 'operator' AND status = 'LIVE';

CREATE UNIQUE INDEX uq_placed_segments__sequence_number
    ON cairn.placed_segments (job_id, first_checkpoint, subtask, sequence_number)
    WHERE kind = 'changelog' AND status = 'LIVE';

CREATE TABLE cairn.group_commits (
    commit_id UUID NOT NULL,
    job_id TEXT NOT NULL,
    checkpoint_id BIGINT NOT NULL,
    file_id UUID,
    tm_id TEXT NOT NULL,
    parallelism INTEGER NOT NULL,
    max_parallelism INTEGER NOT NULL,
    status VARCHAR(16) DEFAULT 'LIVE' NOT NULL,
    subtasks INTEGER[] DEFAULT '{}' NOT NULL,
    attempt_ids UUID[] DEFAULT '{}' NOT NULL,
    task_attempts BIGINT[] DEFAULT '{}' NOT NULL,
    input_rows BIGINT[] DEFAULT '{}' NOT NULL,
    late_rows BIGINT[],
    max_event_ms BIGINT[],
    restore_ms INTEGER[] DEFAULT '{}' NOT NULL,
    replaced_subtasks INTEGER[] DEFAULT '{}' NOT NULL,
    segment_ids UUID[] DEFAULT '{}' NOT NULL,
    segment_subtasks INTEGER[] DEFAULT '{}' NOT NULL,
    segment_kinds TEXT[],
    sequence_numbers SMALLINT[],
    offsets_bytes BIGINT[] DEFAULT '{}' NOT NULL,
    sizes_bytes BIGINT[] DEFAULT '{}' NOT NULL,
    sha256s BYTEA DEFAULT '' NOT NULL,
    index_sizes_bytes INTEGER[],
    index_sha256s BYTEA,
    entries INTEGER[] DEFAULT '{}' NOT NULL,
    key_groups INT4MULTIRANGE NOT NULL,
    uploaded_files INTEGER,
    uploaded_segments INTEGER,
    uploaded_bytes BIGINT,
    requests INTEGER,
    retries INTEGER,
    hedges INTEGER,
    hedge_wins INTEGER,
    failed_attempts INTEGER,
    winning_attempt INTEGER,
    failed_uploads INTEGER,
    queue_size INTEGER,
    wait_ms INTEGER,
    upload_ms INTEGER,
    longest_request_ms INTEGER,
    pool_wait_ms INTEGER,
    acked_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_group_commits PRIMARY KEY (commit_id),
    CONSTRAINT fk_group_commits__job_id_checkpoint_id FOREIGN KEY (job_id, checkpoint_id)
        REFERENCES cairn.checkpoints (job_id, checkpoint_id),
    CONSTRAINT fk_group_commits__file_id FOREIGN KEY (file_id)
        REFERENCES cairn.physical_files (file_id),
    CONSTRAINT ck_group_commits__status_known CHECK (status IN ('LIVE', 'DEAD', 'ABORTED')),
    CONSTRAINT ck_group_commits__acks_aligned CHECK (
        cardinality(attempt_ids) = cardinality(subtasks)
        AND cardinality(task_attempts) = cardinality(subtasks)
        AND cardinality(input_rows) = cardinality(subtasks)
        AND cardinality(restore_ms) = cardinality(subtasks)
        AND (late_rows IS NULL OR cardinality(late_rows) = cardinality(subtasks))
        AND (max_event_ms IS NULL OR cardinality(max_event_ms) % cardinality(subtasks) = 0)
    ),
    CONSTRAINT ck_group_commits__segments_aligned CHECK (
        cardinality(segment_subtasks) = cardinality(segment_ids)
        AND cardinality(offsets_bytes) = cardinality(segment_ids)
        AND cardinality(sizes_bytes) = cardinality(segment_ids)
        AND octet_length(sha256s) = 32 * cardinality(segment_ids)
        AND cardinality(entries) = cardinality(segment_ids)
        AND (segment_kinds IS NULL OR cardinality(segment_kinds) = cardinality(segment_ids))
        AND (sequence_numbers IS NULL OR cardinality(sequence_numbers) = cardinality(segment_ids))
        AND (index_sizes_bytes IS NULL OR cardinality(index_sizes_bytes) = cardinality(segment_ids))
        AND octet_length(coalesce(index_sha256s, '')) = 32 * coalesce(cardinality(index_sizes_bytes), 0)
        AND (file_id IS NULL) = (cardinality(segment_ids) = 0)
    ),
    CONSTRAINT ck_group_commits__ranges_sane
        CHECK (0 <= ALL (offsets_bytes) AND 0 < ALL (sizes_bytes)),
    CONSTRAINT ck_group_commits__kinds_known
        CHECK (segment_kinds <@ ARRAY['changelog', 'operator', 'channel'])
);

CREATE INDEX ix_group_commits__file_id ON cairn.group_commits (file_id) WHERE file_id IS NOT NULL;

CREATE INDEX ix_group_commits__job_id_checkpoint_id
    ON cairn.group_commits (job_id, checkpoint_id);

CREATE INDEX ix_group_commits__unchanged ON cairn.group_commits (job_id, checkpoint_id)
    WHERE status = 'LIVE' AND key_groups = '{}';

CREATE INDEX ix_group_commits__live ON cairn.group_commits (job_id, checkpoint_id)
    WHERE status = 'LIVE';

CREATE TABLE cairn.history_days (
    job_id TEXT NOT NULL,
    day DATE NOT NULL,
    checkpoints_subsumed BIGINT DEFAULT '0' NOT NULL,
    checkpoints_aborted BIGINT DEFAULT '0' NOT NULL,
    subtasks BIGINT DEFAULT '0' NOT NULL,
    group_commits BIGINT DEFAULT '0' NOT NULL,
    input_rows BIGINT DEFAULT '0' NOT NULL,
    late_rows BIGINT DEFAULT '0' NOT NULL,
    segments BIGINT DEFAULT '0' NOT NULL,
    segment_bytes BIGINT DEFAULT '0' NOT NULL,
    uploads BIGINT DEFAULT '0' NOT NULL,
    upload_requests BIGINT DEFAULT '0' NOT NULL,
    upload_retries BIGINT DEFAULT '0' NOT NULL,
    upload_hedges BIGINT DEFAULT '0' NOT NULL,
    failed_uploads BIGINT DEFAULT '0' NOT NULL,
    uploaded_bytes BIGINT DEFAULT '0' NOT NULL,
    upload_ms BIGINT DEFAULT '0' NOT NULL,
    files BIGINT DEFAULT '0' NOT NULL,
    files_sealed BIGINT DEFAULT '0' NOT NULL,
    file_bytes BIGINT DEFAULT '0' NOT NULL,
    materializations BIGINT DEFAULT '0' NOT NULL,
    materialized_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_history_days PRIMARY KEY (job_id, day),
    CONSTRAINT fk_history_days__job_id FOREIGN KEY (job_id) REFERENCES cairn.jobs (job_id)
);

CREATE TABLE cairn.materialization_totals (
    job_id TEXT NOT NULL,
    subtask BIGINT NOT NULL,
    started BIGINT DEFAULT '0' NOT NULL,
    completed BIGINT DEFAULT '0' NOT NULL,
    failed BIGINT DEFAULT '0' NOT NULL,
    epoch BIGINT NOT NULL,
    run_started BIGINT DEFAULT '0' NOT NULL,
    run_completed BIGINT DEFAULT '0' NOT NULL,
    run_failed BIGINT DEFAULT '0' NOT NULL,
    run_bytes BIGINT DEFAULT '0' NOT NULL,
    last_duration_ms BIGINT,
    last_full_bytes BIGINT,
    last_increment_bytes BIGINT,
    last_completed_at TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    CONSTRAINT pk_materialization_totals PRIMARY KEY (job_id, subtask),
    CONSTRAINT fk_materialization_totals__job_id FOREIGN KEY (job_id)
        REFERENCES cairn.jobs (job_id)
);
