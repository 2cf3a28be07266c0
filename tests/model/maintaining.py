"""What the model does for maintenance: each action whole, in steps, twice at once, and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from cairn.catalog.catalog import Catalog
from cairn.errors import CairnError, StoreFailedError
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.compaction import CompactionReport, compact_job, plan_job
from cairn.maintenance.compaction_plan import CompactionOptions
from cairn.maintenance.materialization import materialize_job
from cairn.maintenance.recorded_work import housekeep_and_record, scrub_and_record
from cairn.maintenance.sweep import sweep_job
from metastore.enums import MaintenanceAction
from tests.model.actors import Actor
from tests.model.running import Running, any_one

_OPTIONS = CompactionOptions(start_amplification=1.1, stop_amplification=1.1)
"""Files of the model have two or three segments of about the same size."""
_DRAIN = replace(_OPTIONS, drain_parallelism=1)

Verb = Callable[[Catalog, str], Any]

VERBS: Mapping[str, Verb] = {
    "cleanup": cleanup_job,
    "sweep": sweep_job,
    "materialize": materialize_job,
    "compact": lambda catalog, job: compact_job(catalog, job, _OPTIONS),
    "drain": lambda catalog, job: compact_job(catalog, job, _DRAIN),
    "scrub": lambda catalog, job: scrub_and_record(catalog, job, sample_percent=None),
    "housekeep": housekeep_and_record,
}
"""As the commands and the DAGs do them: plan, store the plan, apply it."""

_PLANNED = (
    MaintenanceAction.SUBSUMPTION,
    MaintenanceAction.ORPHAN_SWEEP,
    MaintenanceAction.MATERIALIZATION,
    MaintenanceAction.COMPACTION,
)
_KNOWN = (
    "confirmed",
    "older than 60 min",
    "has failed",
    "was dropped",
    "lease",
    "no plan",
    "one of the clocks",
    "make a new plan",
)
"""What is refused for good reason: a savepoint without a batch, an old plan, another's lease."""
verbs = st.sampled_from(sorted(VERBS))


class Maintaining(Running):
    """Maintainers, any number at once, beside a job."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[UUID] = []
        self.applies: dict[Actor, UUID] = {}
        self.is_owner = True

    # ------------------------------------------------------------------ whole, or in steps

    @rule(verb=verbs)
    def maintain(self, verb: str) -> None:
        self.tolerant(self.verb(verb))

    @rule()
    def clean(self) -> None:
        self.tolerant(self.verb("cleanup"))

    @rule(verb=verbs, steps=st.integers(1, 20))
    def begin_to_maintain(self, verb: str, steps: int) -> None:
        self.go_on(self.actor(verb, self.verb(verb), self.note), steps)

    @rule(verb=verbs, turns=st.lists(st.booleans(), min_size=4, max_size=24))
    def schedule_twice(self, verb: str, turns: list[bool]) -> None:
        """Two schedulers begin the same at the same time, and neither knows of the other."""
        both = [self.actor(f"{verb} {n}", self.verb(verb), self.note) for n in (1, 2)]
        for turn in turns:
            if not both[turn].is_over:
                self.go_on(both[turn], 1)

    @rule(subtask=any_one, steps=st.integers(0, 16))
    def compact_half_of_a_fold(self, subtask: int, steps: int) -> None:
        """A stream replaces one of the bases that share a file, so that half of it is dead."""
        self.run_batches(1, together=True)
        self.tolerant(self.verb("materialize"))
        self.run_batches(1, together=True)
        self.materialize_whole(subtask, is_increment=False)
        self.run_batches(4, together=True)
        # Before any of them is subsumed.
        self.look()
        self.clean()
        self.go_on(self.actor("compact", self.verb("compact"), self.note), steps)

    @rule(
        verb=st.sampled_from(["materialize", "compact", "drain"]),
        subtask=any_one,
        before=st.integers(4, 24),
        beats=st.booleans(),
    )
    def race(self, verb: str, subtask: int, before: int, beats: bool) -> None:
        """A stream materializes while the maintenance rewrites the same, and one of them loses."""
        self.run_batches(1, together=True)
        actor = self.actor(verb, self.verb(verb), self.note)
        self.go_on(actor, before)
        self.materialize_whole(subtask, is_increment=False)
        if beats and self.hearts.beating:
            self.work_for_long(beats=1)
        self.run_batches(1, together=True)
        self.go_on(actor, 30)

    def verb(self, name: str) -> Callable[[], Any]:
        return partial(VERBS[name], self.world.catalog, self.app.name)

    # ------------------------------------------------------------------ stored plans

    @precondition(lambda self: len(self.plans) < 4)
    @rule(action=st.sampled_from(_PLANNED))
    def plan(self, action: MaintenanceAction) -> None:
        """One maintainer plans."""
        catalog, job = self.world.catalog, self.app.name
        if action is MaintenanceAction.COMPACTION:
            report = self.tolerant(lambda: plan_job(catalog, job, _OPTIONS))
            run_id = report and report.plan_id
        else:
            stored = self.tolerant(lambda: plan_action(catalog, action, job))
            run_id = stored and stored.run_id
        if run_id is not None:
            self.plans.append(run_id)

    @precondition(lambda self: self.plans)
    @rule(which=any_one, steps=st.integers(1, 20), is_whole=st.booleans(), again=st.booleans())
    def apply(self, which: int, steps: int, is_whole: bool, again: bool) -> None:
        """Another one applies, now or later, whole or in part, once or more often."""
        run_id = self.plans[which % len(self.plans)]
        if is_whole:
            self.tolerant(partial(apply_plan, self.world.catalog, run_id))
        else:
            self.go_on(self.application(run_id), steps)
        if not again:
            self.plans.remove(run_id)

    @precondition(lambda self: self.applies)
    @rule(which=any_one, is_killed=st.booleans(), waits=st.booleans(), steps=st.integers(1, 30))
    def retry(self, which: int, is_killed: bool, waits: bool, steps: int) -> None:
        """A DAG's task that applies a plan is taken for dead, which it may not be, and retried."""
        actor, run_id = list(self.applies.items())[which % len(self.applies)]
        if is_killed:
            actor.kill()
            self.alive = [one for one in self.alive if one is not actor]
        if waits:
            self.pass_time(minutes=3, lands=False)
        self.happened["a task was retried"] += 1
        self.go_on(self.application(run_id), steps)

    def application(self, run_id: UUID) -> Actor:
        work = partial(apply_plan, self.world.catalog, run_id)
        actor = self.actor("apply", work, self.note)
        self.applies = {one: of for one, of in self.applies.items() if not one.is_over}
        self.applies[actor] = run_id
        return actor

    # ------------------------------------------------------------------ dry runs

    @rule()
    def clean_as_the_dry_run_says(self) -> None:
        """What a dry run says is what is done, if nothing comes between."""
        said = self.tolerant(lambda: cleanup_job(self.world.catalog, self.app.name, dry_run=True))
        before = self.world.objects(self.app.job_id)
        done = self.tolerant(self.verb("cleanup"))
        if said is None or done is None:
            assert said is done
            return
        gone = before.keys() - self.world.objects(self.app.job_id).keys()
        assert len(gone) <= said.deleted_files, gone
        said = replace(said, dry_run=False, next_delete_at=done.next_delete_at)
        assert said == done, f"said {said}, done {done}"

    @rule()
    def sweep_as_the_dry_run_says(self) -> None:
        """The same of a sweep: what it sets aside, and what it deletes."""
        said = self.tolerant(lambda: sweep_job(self.world.catalog, self.app.name, dry_run=True))
        before = self.world.objects(self.app.job_id)
        done = self.tolerant(self.verb("sweep"))
        if said is None or done is None:
            assert said is done
            return
        gone = before.keys() - self.world.objects(self.app.job_id).keys()
        assert len(gone) == said.deleted == done.deleted, (gone, said, done)
        assert (said.quarantined, said.freed_bytes) == (done.quarantined, done.freed_bytes)

    @rule()
    def rewrite_as_the_dry_run_says(self) -> None:
        """The same of a fold and of a compaction: nobody else is about, so nothing is refused."""
        catalog, job = self.world.catalog, self.app.name
        due = self.tolerant(lambda: materialize_job(catalog, job, dry_run=True))
        folded = self.tolerant(self.verb("materialize"))
        assert (due is None) == (folded is None)
        if folded is not None:
            assert due.due == folded.folded + folded.unchanged, (due, folded)
        said = self.tolerant(lambda: compact_job(catalog, job, _OPTIONS, dry_run=True))
        done = self.tolerant(self.verb("compact"))
        if said is None or done is None:
            assert said is done
            return
        assert said.plan == done.plan
        if done.done is not None:
            assert done.done.rewritten_files == len(said.plan.files), done
            assert done.done.outpaced_files == 0, done

    # ------------------------------------------------------------------ what came of it

    def tolerant(self, work: Callable[[], Any]) -> Any:
        """Does what may be refused for a reason that the model knows."""
        try:
            result = work()
        except StoreFailedError:
            return None
        except CairnError as error:
            is_known = any(what in str(error).lower() for what in _KNOWN)
            if self.is_owner and not is_known:
                raise
            return None
        self.note(result)
        return result

    def note(self, result: object) -> None:
        """Counts what an action reports to have done."""
        if isinstance(result, CompactionReport):
            result = None if result.done is None else result.done.to_json()
        elif is_dataclass(result) and not isinstance(result, type):
            result = asdict(result)
        if not isinstance(result, dict) or result.get("dry_run"):
            return
        for name in _COUNTED:
            self.happened[name] += int(result.get(name) or 0)


_COUNTED = (
    "folded",
    "refused",
    "moved_segments",
    "outpaced_files",
    "condemned_files",
    "deleted_files",
    "quarantined",
    "deleted",
    "subsumed_checkpoints",
)
