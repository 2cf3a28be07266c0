-- What each role may do, and no more: a job writes, maintenance cleans up, people read the views.
-- `cairn_operator` has no rights: where there are tenants, it shows who has it the jobs of all.
-- Two metastores of one server may be migrated at once, and roles belong to the server.
DO $$
DECLARE
    missing text[] := (
        SELECT array_agg(name)
        FROM unnest(ARRAY['cairn_writer', 'cairn_maintainer', 'cairn_reader', 'cairn_operator']) AS name
        WHERE to_regrole(name) IS NULL
    );
    role_ text;
BEGIN
    FOREACH role_ IN ARRAY coalesce(missing, '{}') LOOP
        BEGIN
            EXECUTE 'CREATE ROLE ' || role_ || ' NOLOGIN';
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
        END;
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE insufficient_privilege USING MESSAGE =
            'the roles ' || array_to_string(missing, ', ') || ' are missing and this user may not '
            'create them: have an administrator run `CREATE ROLE '
            || array_to_string(missing, ' NOLOGIN; CREATE ROLE ') || ' NOLOGIN`, then migrate again';
END $$;

GRANT USAGE ON SCHEMA cairn TO cairn_writer, cairn_maintainer, cairn_reader;
GRANT SELECT ON
    cairn.alembic_version, cairn.segments, cairn.subtask_acks, cairn.v_changelog_storage,
    cairn.v_checkpoint_history, cairn.v_damaged_segments, cairn.v_directories, cairn.v_files,
    cairn.v_history_by_day, cairn.v_jobs, cairn.v_keepers, cairn.v_lost_uploads,
    cairn.v_maintenance_decisions, cairn.v_maintenance_runs, cairn.v_space,
    cairn.v_materialization, cairn.v_metrics, cairn.v_native_comparison, cairn.v_pins,
    cairn.v_run_requests, cairn.v_space_amplification, cairn.v_unneeded_files
    TO cairn_writer, cairn_maintainer, cairn_reader;

GRANT SELECT ON cairn.metastore TO cairn_writer, cairn_maintainer;
GRANT SELECT, INSERT ON cairn.ownerships TO cairn_writer;
GRANT UPDATE (written_at) ON cairn.ownerships TO cairn_writer;
GRANT SELECT ON cairn.ownerships TO cairn_maintainer;

-- By column, what a job's transactions change, so that the rest of a row is as it was made.
GRANT SELECT, INSERT ON
    cairn.jobs, cairn.runs, cairn.state_variables, cairn.checkpoints, cairn.pins,
    cairn.group_commits, cairn.physical_files, cairn.directories, cairn.placed_segments,
    cairn.materializations
    TO cairn_writer;
GRANT UPDATE (query_id, current_epoch, next_checkpoint_id, time_mode, num_retained,
              file_retention_ms, keeps_manifest, history_retention_ms, history_max_checkpoints,
              materialized_by, materialize_interval_ms)
    ON cairn.jobs TO cairn_writer;
GRANT UPDATE (query_id, started_at, seen_at, ended_at) ON cairn.runs TO cairn_writer;
-- A driver does what others ask of its query.
GRANT SELECT ON cairn.run_requests TO cairn_writer;
GRANT UPDATE (status, instead_of, overruled_at, taken_at, ended_at, checkpoint_id, message)
    ON cairn.run_requests TO cairn_writer;
GRANT UPDATE (value_schema, dropped_at) ON cairn.state_variables TO cairn_writer;
GRANT UPDATE (status, completed_at, confirmed_at, ended_at) ON cairn.checkpoints TO cairn_writer;
GRANT UPDATE (expires_at, removed_at) ON cairn.pins TO cairn_writer;
GRANT UPDATE (status, replaced_subtasks) ON cairn.group_commits TO cairn_writer;
GRANT UPDATE (status, size_bytes, created_at, sealed_at) ON cairn.physical_files TO cairn_writer;
GRANT UPDATE (status, epoch, claimed_at, unclaimed_at, deleted_at)
    ON cairn.directories TO cairn_writer;
GRANT UPDATE (released_checkpoint) ON cairn.placed_segments TO cairn_writer;
GRANT UPDATE (finished_at, error, kind, as_of_checkpoint, segments, entries, size_bytes)
    ON cairn.materializations TO cairn_writer;
-- A restore goes around what is damaged.
GRANT SELECT ON cairn.damaged_segments TO cairn_writer;

GRANT SELECT ON
    cairn.jobs, cairn.runs, cairn.state_variables, cairn.checkpoints, cairn.pins,
    cairn.group_commits, cairn.physical_files, cairn.directories, cairn.placed_segments,
    cairn.upload_totals, cairn.materializations, cairn.maintenance_runs,
    cairn.maintenance_decisions, cairn.deletions, cairn.history_days, cairn.materialization_totals,
    cairn.damaged_segments, cairn.good_runs
    TO cairn_maintainer;
GRANT SELECT ON cairn.tenants TO cairn_maintainer;
GRANT UPDATE (status, ended_at) ON cairn.checkpoints TO cairn_maintainer;
GRANT UPDATE (removed_at) ON cairn.pins TO cairn_maintainer;
GRANT UPDATE (ended_at) ON cairn.runs TO cairn_maintainer;
GRANT UPDATE (status, condemned_at, deleted_at, verified_at) ON cairn.physical_files TO cairn_maintainer;
GRANT UPDATE (status, condemned_at) ON cairn.v_unneeded_files TO cairn_maintainer;
GRANT UPDATE (status, unclaimed_at, deleted_at) ON cairn.directories TO cairn_maintainer;
GRANT UPDATE (status) ON cairn.placed_segments, cairn.group_commits TO cairn_maintainer;
GRANT INSERT ON
    cairn.maintenance_runs, cairn.maintenance_decisions, cairn.deletions, cairn.good_runs
    TO cairn_maintainer;
GRANT UPDATE (finished_at) ON cairn.good_runs TO cairn_maintainer;
-- What a fold or a compaction writes, and what that replaces.
GRANT INSERT ON
    cairn.physical_files, cairn.directories, cairn.placed_segments, cairn.materializations
    TO cairn_maintainer;
GRANT UPDATE (size_bytes, sealed_at) ON cairn.physical_files TO cairn_maintainer;
GRANT UPDATE (epoch, claimed_at) ON cairn.directories TO cairn_maintainer;
GRANT UPDATE (released_checkpoint) ON cairn.placed_segments TO cairn_maintainer;
GRANT UPDATE (status, result, finished_at, holder, leased_until, breakers, passed_by, passed_at)
    ON cairn.maintenance_runs TO cairn_maintainer;
GRANT UPDATE (objects) ON cairn.maintenance_decisions TO cairn_maintainer;
GRANT INSERT ON cairn.damaged_segments TO cairn_maintainer;
GRANT UPDATE (damage, seen_at, resolved_at) ON cairn.damaged_segments TO cairn_maintainer;
GRANT UPDATE (attempts, last_error, done_at) ON cairn.deletions TO cairn_maintainer;
GRANT SELECT, INSERT, DELETE ON cairn.quarantined_objects TO cairn_maintainer;
GRANT SELECT, DELETE ON cairn.run_requests TO cairn_maintainer;
-- Not who asks: the database says that.
GRANT INSERT (request_id, job_id, kind, parallelism, savepoint) ON cairn.run_requests
    TO cairn_maintainer;
GRANT UPDATE (status, ended_at, message) ON cairn.run_requests TO cairn_maintainer;
GRANT UPDATE (status, condemned_at, restored_at, released_at, deleted_at, last_error)
    ON cairn.quarantined_objects TO cairn_maintainer;
-- That a sweep may look at what was there before this metastore had a root.
GRANT UPDATE (confirmed_at) ON cairn.ownerships TO cairn_maintainer;
GRANT DELETE ON
    cairn.checkpoints, cairn.pins, cairn.group_commits, cairn.physical_files, cairn.directories,
    cairn.placed_segments, cairn.upload_totals, cairn.materializations, cairn.maintenance_runs,
    cairn.maintenance_decisions, cairn.deletions, cairn.damaged_segments
    TO cairn_maintainer;
-- To rename a job, and to drop one; then its last rows go, too.
GRANT UPDATE (name, former_name, dropped_at, current_epoch) ON cairn.jobs TO cairn_maintainer;
GRANT DELETE ON
    cairn.jobs, cairn.runs, cairn.state_variables, cairn.history_days,
    cairn.materialization_totals, cairn.good_runs, cairn.ownerships
    TO cairn_maintainer;
