"""What becomes of a stored plan when the answer of a person comes, late, twice or not at all."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from sqlalchemy import make_url

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.leases import take_lease
from cairn.errors import BadInputError, FencedError, RefusedError
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.approval import Answer, Outcome, apply_answered
from cairn.maintenance.drop import drop_job, find_job_to_drop
from cairn.maintenance.plans import pass_breakers, read
from metastore.enums import MaintenanceAction
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.maintenance.test_cleanup import assert_clean
from tests.maintenance.test_stored_plans import lose_what_is_live

ADA = Answer(is_approved=True, by="ada")
NOBODY_ASKED = Answer(is_approved=True, by=None)
REJECTED = Answer(is_approved=False, by="ada")
NO_ANSWER = Answer(is_approved=False, by=None)
AGE = "UPDATE cairn.maintenance_runs SET planned_at = planned_at - interval '61 min'"


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def planned(job: SyntheticJob, action: MaintenanceAction = MaintenanceAction.SUBSUMPTION) -> UUID:
    stored = plan_action(job.catalog, action, job.name)
    assert stored is not None
    return stored.run_id


@pytest.fixture
def refused(job: SyntheticJob) -> UUID:
    lose_what_is_live(job)
    run_id = planned(job)
    assert read(job.catalog, run_id).status == "REFUSED"
    return run_id


def test_a_plan_about_which_no_breaker_spoke_needs_no_answer(job: SyntheticJob) -> None:
    done = apply_answered(job.catalog, planned(job), NOBODY_ASKED)
    assert (done.outcome, done.changed["deleted_files"]) == (Outcome.APPLIED, job.DOOMED)
    assert_clean(job)


def test_a_retry_after_a_lost_answer_changes_nothing_more(job: SyntheticJob, refused: UUID) -> None:
    first = apply_answered(job.catalog, refused, ADA)
    assert first.changed["deleted_files"] > 0
    rows = dump(job.url)
    again = apply_answered(job.catalog, refused, ADA)
    assert (again.outcome, again.changed["deleted_files"]) == (Outcome.APPLIED, 0)
    assert again.told == f"plan {refused} is applied, and ada has passed its circuit breakers"
    assert dump(job.url) == rows


@pytest.mark.parametrize("answer", [REJECTED, NO_ANSWER, NOBODY_ASKED])
def test_without_a_name_and_a_yes_a_refused_plan_stays_refused(
    job: SyntheticJob, refused: UUID, answer: Answer
) -> None:
    before = dump(job.url), job.objects()
    done = apply_answered(job.catalog, refused, answer)
    assert (done.outcome, dict(done.changed)) == (Outcome.NOT_APPROVED, {})
    assert "stays REFUSED" in done.told
    assert f"`cairn runs {job.name}`" in done.told
    assert (dump(job.url), job.objects()) == before


def test_an_approval_after_the_plan_has_expired_is_refused_and_not_recorded(
    job: SyntheticJob, refused: UUID
) -> None:
    job.execute(AGE)
    before = dump(job.url), job.objects()
    with pytest.raises(RefusedError, match=r"too late.*`cairn plan subsumption"):
        apply_answered(job.catalog, refused, ADA)
    assert (dump(job.url), job.objects()) == before


def test_an_approval_after_the_job_was_dropped_says_so_and_changes_nothing(
    job: SyntheticJob, refused: UUID
) -> None:
    job.execute("UPDATE cairn.runs SET ended_at = now() WHERE job_id = :job")
    assert drop_job(job.catalog, find_job_to_drop(job.catalog, job.name)).is_gone
    rows = dump(job.url)
    with pytest.raises(BadInputError, match=f"no plan {refused}.* Its job was dropped"):
        apply_answered(job.catalog, refused, ADA)
    assert dump(job.url) == rows


def test_a_plan_that_was_applied_from_a_shell_meanwhile_is_not_applied_again(
    job: SyntheticJob, refused: UUID
) -> None:
    pass_breakers(job.catalog, refused, ["empty-live-set"], "bob")
    apply_plan(job.catalog, refused)
    rows = dump(job.url)
    for answer in (ADA, REJECTED, NO_ANSWER):
        done = apply_answered(job.catalog, refused, answer)
        assert (done.outcome, done.changed["deleted_files"]) == (Outcome.APPLIED, 0)
        assert "bob has passed" in done.told
    assert dump(job.url) == rows


def test_a_plan_that_was_passed_from_a_shell_meanwhile_needs_no_second_name(
    job: SyntheticJob, refused: UUID
) -> None:
    pass_breakers(job.catalog, refused, ["empty-live-set"], "bob")
    rejected = apply_answered(job.catalog, refused, REJECTED)
    assert rejected.outcome is Outcome.NOT_APPROVED
    assert "bob has passed it from a shell, so it is left to them" in rejected.told
    done = apply_answered(job.catalog, refused, ADA)
    assert done.outcome is Outcome.APPLIED
    assert read(job.catalog, refused).passed_by == "bob"


def test_two_schedulers_plan_and_apply_at_once_and_each_object_is_deleted_once(
    job: SyntheticJob,
) -> None:
    both = [planned(job), planned(job)]
    done = [apply_answered(job.catalog, one, NOBODY_ASKED).changed for one in both]
    assert [one["deleted_files"] for one in done] == [job.DOOMED, 0]
    assert [one["condemned_files"] for one in done] == [job.DOOMED, 0]
    assert_clean(job)


def test_a_plan_that_became_too_old_in_a_queue_is_left_to_a_new_one(job: SyntheticJob) -> None:
    run_id = planned(job)
    job.execute(AGE)
    before = dump(job.url), job.objects()
    assert apply_answered(job.catalog, run_id, NOBODY_ASKED).outcome is Outcome.TOO_OLD
    assert (dump(job.url), job.objects()) == before


def test_who_was_killed_hours_ago_is_not_taken_over_and_who_lives_is_waited_for(
    job: SyntheticJob,
) -> None:
    run_id = planned(job, MaintenanceAction.SCRUB)
    job.catalog.run("a lease", lambda c: take_lease(c, run_id, uuid4()))
    job.execute(AGE)
    with pytest.raises(FencedError, match="another process applies"):
        apply_answered(job.catalog, run_id, NOBODY_ASKED)
    job.execute("UPDATE cairn.maintenance_runs SET leased_until = now() - interval '1 s'")
    assert apply_answered(job.catalog, run_id, NOBODY_ASKED).outcome is Outcome.TOO_OLD


def test_an_approval_without_the_rights_of_a_maintainer_is_refused(
    job: SyntheticJob, refused: UUID
) -> None:
    before = dump(job.url), job.objects()
    reader = make_url(job.url).update_query_dict({"options": "-c role=cairn_reader"})
    catalog = Catalog(reader.render_as_string(hide_password=False))
    with pytest.raises(BadInputError, match=r"permission denied for .*user's rights"):
        apply_answered(catalog, refused, ADA)
    assert (dump(job.url), job.objects()) == before
