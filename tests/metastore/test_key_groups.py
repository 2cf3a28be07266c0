"""How many key groups a job has: by Flink's rule when it is new, and then the same for ever."""

from __future__ import annotations

import pytest

from cairn.errors import BadInputError
from cairn.keygroups import default_max_parallelism
from tests.metastore.steps import Steps


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def key_groups(steps: Steps) -> int:
    [(number,)] = steps.sql("SELECT max_parallelism FROM cairn.jobs WHERE job_id = :job")
    return int(number)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    # Where the powers of two change. Flink, too, halves whole numbers: 171 + 85 = 256.
    [
        *[(1, 128), (85, 128), (86, 256), (171, 256), (172, 512), (200, 512), (341, 512)],
        *[(342, 1024), (10_923, 16_384), (10_924, 32_768), (32_768, 32_768)],
    ],
)
def test_the_default_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


def test_a_job_of_as_many_subtasks_as_sparks_shuffle_partitions_starts(steps: Steps) -> None:
    steps.register(200, max_parallelism=None)
    assert key_groups(steps) == 512


def test_a_restart_without_the_option_keeps_the_jobs_number(steps: Steps) -> None:
    steps.register(2, max_parallelism=None)
    steps.register(100, max_parallelism=None)  # a new job of 100 would have 256
    steps.register(128, max_parallelism=128)
    assert key_groups(steps) == 128


def test_a_number_that_was_given_is_kept_without_the_option(steps: Steps) -> None:
    steps.register(2, max_parallelism=8)
    steps.register(8, max_parallelism=None)
    assert key_groups(steps) == 8
    with pytest.raises(BadInputError, match=r"max-parallelism is 128, but .* was made with 8"):
        steps.register(8, max_parallelism=128)


def test_more_subtasks_than_key_groups_are_refused_and_the_limit_is_named(steps: Steps) -> None:
    steps.register(2, max_parallelism=None)
    with pytest.raises(BadInputError, match=r"is 129, but .* 128 key groups.*Lower .* to 128, or"):
        steps.register(129, max_parallelism=None)
    assert steps.sql("SELECT epoch FROM cairn.runs WHERE job_id = :job") == [(1,)]
