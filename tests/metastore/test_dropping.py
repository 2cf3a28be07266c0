from __future__ import annotations

from typing import Any

import pytest

from cairn.catalog.job.runs import RegisteredRun
from cairn.errors import RefusedError
from cairn.state.handle import StateDeclaration
from tests.metastore.steps import Steps

LONG = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True}]}
W = StateDeclaration(name="w", kind="value", value_schema=LONG)


@pytest.fixture
def steps(metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(metastore_url, tmp_storage)


def start(steps: Steps, **changes: Any) -> RegisteredRun:
    return steps.register_as(steps.registration(**changes))


def test_a_plan_that_deletes_a_variable_and_is_only_built_deletes_nothing(steps: Steps) -> None:
    first = start(steps, states=[W])
    steps.whole_batch(first.epoch, 0)
    built = start(steps, deleted_states=["w"])
    assert built.dropped_state_ids == (first.states["w"].state_id,)
    assert start(steps, states=[W]).states == first.states


def test_a_variable_is_deleted_when_the_run_begins_and_gets_a_new_id_when_made_again(
    steps: Steps,
) -> None:
    first = start(steps, states=[W])
    steps.whole_batch(first.epoch, 0)
    deleting = start(steps, deleted_states=["w"])
    steps.whole_batch(deleting.epoch, 1)
    again = start(steps, states=[W])
    old_id = first.states["w"].state_id
    assert again.states["w"].state_id > old_id
    assert again.dropped_state_ids == (old_id,)


def test_a_run_whose_variable_was_deleted_after_its_plan_was_built_is_refused(
    steps: Steps,
) -> None:
    first = start(steps, states=[W])
    steps.whole_batch(first.epoch, 0)
    deleting = start(steps, deleted_states=["w"])
    built_before = start(steps, states=[W])
    steps.whole_batch(deleting.epoch, 1)
    with pytest.raises(RefusedError, match="state variables w were deleted by another run"):
        steps.begin(steps.ref(built_before.epoch, 2))
