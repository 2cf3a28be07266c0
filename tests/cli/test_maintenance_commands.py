"""The commands that plan and apply maintenance, and that say what keeps objects and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text

from tests.cli.conftest import Outcome
from tests.maintenance.synthetic import SEGMENT_BYTES, SyntheticJob, dump
from tests.maintenance.test_cleanup import assert_clean

Cairn = Callable[..., Outcome]
BYTES = 2 * SEGMENT_BYTES
"""Of a file with segments."""


@pytest.fixture
def synthetic(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage, file_retention_ms=3_600_000).create()


def pin(job: SyntheticJob, checkpoint: int) -> None:
    job.execute(
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind, name)"
        " VALUES (gen_random_uuid(), :job, :checkpoint, 'pin', 'audit')",
        checkpoint=checkpoint,
    )


def path_of(job: SyntheticJob, checkpoint: int) -> str:
    """Returns the path of the changelog of a checkpoint."""
    [(path,)] = job.execute(
        "SELECT DISTINCT f.path FROM cairn.placed_segments s JOIN cairn.physical_files f"
        " USING (file_id) WHERE s.job_id = :job AND s.first_checkpoint = :first"
        " AND s.kind = 'changelog'",
        first=checkpoint,
    )
    return str(path)


def keepers(cairn: Cairn, of: str) -> dict[str, str]:
    return {row["keeper"]: row["because"] for row in cairn("explain", of, "--json").json}


def test_a_plan_is_printed_applied_by_its_id_and_listed(
    cairn: Cairn, synthetic: SyntheticJob
) -> None:
    synthetic.execute("UPDATE cairn.jobs SET file_retention_ms = 0")
    [planned] = cairn("plan", "subsumption", synthetic.name, "--json").json
    assert (planned["status"], planned["files"]) == ("PLANNED", synthetic.DOOMED)
    assert len(planned["content"]["condemned_files"]) == synthetic.DOOMED
    [applied] = cairn("apply", planned["plan"], "--json").json
    assert (applied["status"], applied["deleted_files"]) == ("APPLIED", synthetic.DOOMED)
    assert_clean(synthetic)
    [run] = cairn("runs", synthetic.name, "--json").json
    assert (run["maintenance_run_id"], run["state"]) == (planned["plan"], "APPLIED")
    nothing = cairn("plan", "subsumption", synthetic.name)
    assert (nothing.code, nothing.err) == (0, f"nothing to do for job {synthetic.name}\n")


def test_a_circuit_breaker_is_passed_by_its_name_in_somebodys_name(
    cairn: Cairn, synthetic: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_MAX_DELETED_SIZE", "1b")
    refused = cairn("plan", "subsumption", synthetic.name)
    assert refused.code == 4
    [run] = cairn("runs", "--json").json
    command = f"cairn apply {run['maintenance_run_id']} --pass bytes --by NAME"
    assert command in refused.err
    assert cairn("apply", run["maintenance_run_id"]).code == 4
    assert cairn("apply", run["maintenance_run_id"], "--pass", "bytes").code == 2
    assert cairn("apply", run["maintenance_run_id"], "--pass", "share", "--by", "ada").code == 4
    assert cairn("apply", run["maintenance_run_id"], "--pass", "bytes", "--by", "ada").code == 0
    [run] = cairn("runs", "--json").json
    assert (run["state"], run["passed_by"]) == ("APPLIED", "ada")
    assert "CAIRN_MAX_DELETED_SIZE is 1 bytes" in run["breakers"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "vacuum", "job"], "invalid choice: 'vacuum'"),
        (["apply", "12"], "'12' is no id of a plan; `cairn runs` lists them"),
        (["apply", "0b8e4d6e-8f5c-4d3f-8a62-2f8f3f0a7a11"], "no plan 0b8e4d6e"),
    ],
)
def test_what_is_no_plan_is_named(cairn: Cairn, arguments: list[str], message: str) -> None:
    outcome = cairn(*arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_explain_names_everybody_who_keeps_an_object(cairn: Cairn, synthetic: SyntheticJob) -> None:
    pin(synthetic, 2)
    found = keepers(cairn, path_of(synthetic, 1))
    assert found.keys() == {"pin", "superseded checkpoint"}
    assert "pin audit of checkpoint 2" in found["pin"]
    assert found["superseded checkpoint"].endswith("subsumes: 2 from 1 to 3")
    assert keepers(cairn, path_of(synthetic, 3)).keys() == {"superseded checkpoint"}
    newest = keepers(cairn, path_of(synthetic, 5))
    assert newest.keys() == {"next checkpoint", "newest checkpoint", "unfinished checkpoint"}
    assert newest["newest checkpoint"].endswith("which stay: 5")
    assert "200 bytes" in newest["next checkpoint"]


def test_explain_says_what_deletes_an_object_and_when(
    cairn: Cairn, synthetic: SyntheticJob
) -> None:
    path = path_of(synthetic, 1)
    assert keepers(cairn, path).keys() == {"superseded checkpoint"}
    assert cairn("cleanup").code == 0
    [row] = cairn("explain", f"{synthetic.storage}/{path}", "--json").json
    [(run,)] = synthetic.execute("SELECT maintenance_run_id FROM cairn.maintenance_runs")
    assert (row["keeper"], row["status"]) == ("grace", "CONDEMNED")
    assert str(run) in row["because"]
    assert row["kept_until"] is not None
    synthetic.execute("UPDATE cairn.jobs SET file_retention_ms = 0")
    assert "the next cleanup deletes it" in keepers(cairn, path)["nothing"]
    assert cairn("cleanup").code == 0
    assert keepers(cairn, path).keys() == {"deleted"}


def test_explain_tells_intents_from_what_was_left(cairn: Cairn, synthetic: SyntheticJob) -> None:
    of = "SELECT path FROM cairn.physical_files WHERE status = 'WRITING' AND epoch = :epoch"
    [(in_flight,)] = synthetic.execute(of, epoch=2)
    assert keepers(cairn, in_flight) == {"intent": "run 2 is writing it and has not sealed it"}
    [(left,), *_] = synthetic.execute(of, epoch=1)
    assert "the next cleanup condemns it" in keepers(cairn, left)["nothing"]
    synthetic.execute("UPDATE cairn.physical_files SET created_at = now() WHERE epoch = 1")
    assert "may still appear" in keepers(cairn, left)["grace"]


def test_explain_knows_owner_objects_and_says_what_no_row_knows(
    cairn: Cairn, synthetic: SyntheticJob
) -> None:
    assert keepers(cairn, f"{synthetic.job_id}/owner/{1:020}").keys() == {"job"}
    found = keepers(cairn, f"{synthetic.storage}/{synthetic.job_id}/shared/unknown")
    assert "no row of this metastore knows it" in found["nothing"]


def test_explain_takes_the_id_of_a_file(cairn: Cairn, synthetic: SyntheticJob) -> None:
    path = path_of(synthetic, 5)
    file_id = path.rpartition("/")[2].removesuffix(".seg")
    [(stored,)] = synthetic.execute(
        "SELECT file_id FROM cairn.physical_files WHERE path = :path", path=path
    )
    assert file_id
    assert {row["path"] for row in cairn("explain", str(stored), "--json").json} == {path}


def space(cairn: Cairn, job: SyntheticJob) -> dict[str, Any]:
    [row] = cairn("space", job.name, "--json").json
    parts = [value for name, value in row.items() if name.endswith("_bytes")]
    assert sum(parts) == 2 * row["physical_bytes"], "the parts are all there is"
    return {name: value for name, value in row.items() if name.endswith("_bytes") and value}


def test_space_says_what_bytes_are_kept_by(cairn: Cairn, synthetic: SyntheticJob) -> None:
    live = 4 * BYTES  # the base, and the changelogs of 4 to 6
    released = {"superseded_bytes": 3 * BYTES, "unneeded_bytes": BYTES}
    expected = {"physical_bytes": 8 * BYTES, "live_bytes": live, **released}
    assert space(cairn, synthetic) == expected
    pin(synthetic, 2)
    # It needs the changelogs of 1 and 2.
    pinned = {"superseded_bytes": BYTES, "pinned_bytes": 2 * BYTES}
    assert space(cairn, synthetic) == expected | pinned
    synthetic.execute("UPDATE cairn.jobs SET num_retained = 3")
    # Checkpoint 3 is one of the newest three now, and needs them all.
    del expected["superseded_bytes"]
    assert space(cairn, synthetic) == expected | {"retained_bytes": 3 * BYTES}
    synthetic.execute("UPDATE cairn.jobs SET num_retained = 2")
    assert cairn("cleanup").code == 0
    assert space(cairn, synthetic) == {
        "physical_bytes": 8 * BYTES,
        "live_bytes": live,
        "pinned_bytes": 2 * BYTES,
        "waiting_bytes": 2 * BYTES,
    }
    synthetic.execute("UPDATE cairn.jobs SET file_retention_ms = 0")
    assert space(cairn, synthetic)["due_bytes"] == 2 * BYTES


def test_space_tells_dead_bytes_in_files_that_are_needed(
    cairn: Cairn, synthetic: SyntheticJob
) -> None:
    def kill_half(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE cairn.placed_segments DISABLE TRIGGER guard_needed"))
        connection.execute(
            text(
                "UPDATE cairn.placed_segments SET status = 'DEAD' WHERE subtask = 0"
                " AND kind = 'keyed_full'"
            )
        )
        connection.execute(text("ALTER TABLE cairn.placed_segments ENABLE TRIGGER guard_needed"))

    synthetic.catalog.run("killing segments", kill_half)
    assert space(cairn, synthetic)["dead_bytes"] == SEGMENT_BYTES


def test_readers_ask_who_keeps_what_with_their_rights_alone(
    cairn: Cairn, synthetic: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_url(synthetic.url).update_query_dict({"options": "-c role=cairn_reader"})
    monkeypatch.setenv("CAIRN_METASTORE", reader.render_as_string(hide_password=False))
    assert "next checkpoint" in keepers(cairn, path_of(synthetic, 5))
    assert space(cairn, synthetic)["live_bytes"] == 4 * BYTES
    assert cairn("runs", "--json").json == []


def test_a_dry_run_of_plan_and_of_apply_says_what_a_plan_has_and_changes_nothing(
    cairn: Cairn, synthetic: SyntheticJob
) -> None:
    before = dump(synthetic.url), synthetic.objects()
    dry = cairn("plan", "subsumption", synthetic.name, "--dry-run")
    assert dry.code == 0
    assert f"condemned_files: {synthetic.DOOMED}\n" in dry.out
    [unstored] = cairn("plan", "subsumption", synthetic.name, "--dry-run", "--json").json
    assert (unstored["plan"], unstored["files"]) == (None, synthetic.DOOMED)
    assert (dump(synthetic.url), synthetic.objects()) == before
    [planned] = cairn("plan", "subsumption", synthetic.name, "--json").json
    assert planned["content"] == unstored["content"]
    before = dump(synthetic.url), synthetic.objects()
    dry = cairn("apply", planned["plan"], "--dry-run")
    assert dry.code == 0
    assert all(path in dry.out for path in synthetic.doomed)
    assert (dump(synthetic.url), synthetic.objects()) == before
    synthetic.execute("UPDATE cairn.maintenance_runs SET planned_at = now() - interval '61 min'")
    late = cairn("apply", planned["plan"], "--dry-run")
    assert (late.code, "it would not be applied" in late.err) == (4, True)


def test_each_answer_names_the_next_command(
    cairn: Cairn, synthetic: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = cairn("plan", "subsumption", synthetic.name)
    [run] = cairn("runs", "--json").json
    assert f"`cairn apply {run['maintenance_run_id']}`" in planned.err
    monkeypatch.setenv("CAIRN_MAX_DELETED_SIZE", "1b")
    assert "would speak" in cairn("plan", "subsumption", synthetic.name, "--dry-run").err
    refused = cairn("plan", "subsumption", synthetic.name)
    listed = cairn("runs", synthetic.name)
    assert "1 wait for a person" in listed.err
    [newest, _] = cairn("runs", "--json").json
    assert f"`cairn apply {newest['maintenance_run_id']} --dry-run`" in listed.err
    explained = cairn("apply", newest["maintenance_run_id"], "--dry-run")
    assert explained.code == 4
    for answer in (refused, explained):
        assert "bytes would be deleted" in answer.err
        assert f"`cairn space {synthetic.name}`" in answer.err
        assert f"cairn apply {newest['maintenance_run_id']} --pass bytes --by NAME" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "ada"], "name it with --pass"),
        (["--pass", "bytes", "--by", "ada", "--dry-run"], "does not go with --dry-run"),
    ],
)
def test_arguments_of_apply_that_do_not_go_together_are_refused(
    cairn: Cairn, arguments: list[str], message: str
) -> None:
    outcome = cairn("apply", "0b8e4d6e-8f5c-4d3f-8a62-2f8f3f0a7a11", *arguments)
    assert (outcome.code, message in outcome.err) == (2, True)
