"""A plan that is only built changes nothing; what it is built with counts from its first batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cairn.errors import BadInputError, RefusedError
from cairn.state.handle import StateDeclaration
from tests.metastore.steps import Steps

N = {"name": "n", "type": "integer", "nullable": True}
W = StateDeclaration(name="w", kind="value", value_schema={"type": "struct", "fields": [N]})
WIDE = replace(W, value_schema={"type": "struct", "fields": [{**N, "type": "long"}]})
ADDED = replace(W, value_schema={"type": "struct", "fields": [N, {**N, "name": "m"}]})
OTHER_KIND = replace(W, kind="list", ttl_ms=1000)
LIST = replace(W, name="l", kind="operator_list")


@pytest.fixture
def steps(metastore_url: str, tmp_storage: str) -> Steps:
    """Run 1 has made checkpoints 1 to 5 and keeps 100."""
    steps = Steps(metastore_url, tmp_storage)
    steps.register(num_retained=100, states=[W])
    for batch_id in range(5):
        steps.whole_batch(1, batch_id)
    return steps


def of_the_job(steps: Steps) -> list[list[tuple[Any, ...]]]:
    return [
        steps.sql(
            f"SELECT to_jsonb(t) FROM cairn.{table} AS t"  # noqa: S608 - fixed names
            " WHERE job_id = :job ORDER BY 1"
        )
        for table in ("jobs", "checkpoints", "state_variables")
    ]


def layouts(steps: Steps) -> dict[str, Any]:
    return dict(steps.sql("SELECT name, value_schema FROM cairn.state_variables"))


@pytest.mark.parametrize("states", [[WIDE], [ADDED], [W, LIST], []])
def test_a_plan_that_is_only_built_changes_no_row_of_the_job(
    steps: Steps, states: list[StateDeclaration]
) -> None:
    before = of_the_job(steps)
    steps.register(states=states, history_max_checkpoints=1000, file_retention_ms=7)
    assert of_the_job(steps) == before
    assert steps.register_as(steps.registration(states=[W])).states["w"].value_layout == (
        W.value_schema
    ), "production restarts"
    assert of_the_job(steps) == before


def test_cleanup_keeps_what_the_begun_run_retains_and_a_new_option_counts_from_its_begin(
    steps: Steps,
) -> None:
    built = steps.register(num_retained=2, states=[W])
    steps.clean()
    assert "SUBSUMED" not in steps.statuses().values()
    steps.whole_batch(built, 5)
    steps.clean()
    assert list(steps.statuses().values()).count("SUBSUMED") == 3


def test_a_shorter_retention_of_files_counts_from_its_runs_first_batch(steps: Steps) -> None:
    steps.begin(steps.ref(1, 5))
    file = steps.intend(steps.ref(1, 5))
    slow = steps.register(num_retained=100, states=[W], file_retention_ms=3_600_000)
    steps.whole_batch(slow, 5)
    steps.let_writes_end()
    built = steps.register(num_retained=100, states=[W], file_retention_ms=0)
    steps.clean()
    assert steps.file_facts(file)[0] == "CONDEMNED"
    steps.whole_batch(built, 6)
    steps.clean()
    assert steps.file_facts(file)[0] == "DELETED"


def test_a_wider_layout_takes_effect_when_its_run_begins(steps: Steps) -> None:
    wide = steps.register(states=[WIDE])
    assert layouts(steps) == {"w": W.value_schema}
    steps.begin(steps.ref(wide, 5))
    assert layouts(steps) == {"w": WIDE.value_schema}


@pytest.mark.parametrize("states", [[W], [ADDED]])
def test_a_plan_whose_layout_another_run_has_changed_meanwhile_is_refused(
    steps: Steps, states: list[StateDeclaration]
) -> None:
    wide, narrow = steps.register(states=[WIDE]), steps.register(states=states)
    steps.begin(steps.ref(wide, 5))
    before = of_the_job(steps)
    with pytest.raises(RefusedError, match=r"changed w after .* Build the plan again"):
        steps.begin(steps.ref(narrow, 5))
    assert of_the_job(steps) == before


def test_a_plan_that_does_not_know_a_list_that_another_run_made_meanwhile_is_refused(
    steps: Steps,
) -> None:
    """It would not carry the list's elements over."""
    first, second = steps.register(states=[W, LIST]), steps.register(states=[W])
    steps.begin(steps.ref(first, 5))
    with pytest.raises(RefusedError, match=r"changed l after .* Build the plan again"):
        steps.begin(steps.ref(second, 5))


def test_a_variable_that_no_begun_run_declares_refuses_no_later_plan(
    metastore_url: str, tmp_storage: str
) -> None:
    steps = Steps(metastore_url, tmp_storage)
    for states in ([OTHER_KIND], [WIDE], [W]):
        run = steps.register_as(steps.registration(states=states, time_mode="none"))
        assert run.states["w"].state_id == 1
    steps.register(states=[LIST, W], time_mode="eventtime")
    steps.begin(steps.ref(3, 0))
    assert layouts(steps) == {"w": W.value_schema}
    with pytest.raises(RefusedError, match=r"changed timeMode after"):
        steps.begin(steps.ref(4, 0))
    assert steps.register_as(steps.registration(states=[LIST])).states["l"].state_id == 2


def test_a_time_mode_or_ttl_other_than_the_states_is_refused(
    metastore_url: str, tmp_storage: str
) -> None:
    steps = Steps(metastore_url, tmp_storage)
    begun = steps.register(states=[replace(W, ttl_ms=1000)], time_mode="processingtime")
    steps.begin(steps.ref(begun, 0))
    with pytest.raises(BadInputError, match=r"timeMode is 'none', but .* with 'processingtime'"):
        steps.register(states=[], time_mode="none")
    with pytest.raises(BadInputError, match="'w' has no ttlDurationMs, but"):
        steps.register(states=[W], time_mode="processingtime")
