"""What damaged bases and increments are made again from: other segments of the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from cairn.catalog.cleanup.needs import newest_whole
from cairn.catalog.cleanup.snapshot import JobFacts, facts_of_job
from cairn.catalog.job.damage import (
    Damage,
    confirmed_checkpoints,
    inside,
    read_damage,
    segments_around,
    way_around,
)
from cairn.catalog.job.materializations import replay_of
from cairn.catalog.job.segments import read_one_instant
from cairn.catalog.maintenance.folds import FoldInput, Share, placed_in


@dataclass(frozen=True, slots=True, kw_only=True)
class HealFacts:
    """What is damaged of a job, and its confirmed checkpoints, oldest first.

    `newest_whole` is the newest that needs nothing damaged; None: none, or nothing is damaged.
    """

    job: JobFacts
    damage: tuple[Damage, ...]
    confirmed: tuple[int, ...]
    newest_whole: int | None


def read_heal_facts(connection: Connection, job_name: str) -> HealFacts:
    """Returns what there is to heal of a job, as of one instant.

    Raises:
        BadInputError: there is no such job.
    """
    read_one_instant(connection)
    job = facts_of_job(connection, job_name)
    return HealFacts(
        job=job,
        damage=tuple(read_damage(connection, job.job_id)),
        confirmed=tuple(confirmed_checkpoints(connection, job.job_id)),
        newest_whole=connection.scalar(newest_whole(job.job_id)),
    )


def read_heal_inputs(
    connection: Connection, job_id: str, shares: Sequence[Share]
) -> list[FoldInput]:
    """Returns what new bases of some shares are folded from, as of the newest confirmed checkpoint.

    None of it is known as damaged. Left out are shares in which nothing is damaged any more that
    checkpoints to come need, and those for which no other segments are there.
    """
    read_one_instant(connection)
    confirmed = confirmed_checkpoints(connection, job_id)
    if not confirmed:
        return []
    damage = read_damage(connection, job_id)
    made = (_input(connection, job_id, share, damage, confirmed) for share in shares)
    return [one for one in made if one is not None]


def _input(
    connection: Connection,
    job_id: str,
    share: Share,
    damage: Sequence[Damage],
    confirmed: Sequence[int],
) -> FoldInput | None:
    as_of, here = confirmed[-1], inside(damage, share.key_groups)
    broken = broken_for_next(here, as_of)
    way = way_around(broken, here, confirmed)
    if not broken or way is None:
        return None
    replay = replay_of(connection, job_id, as_of, share.key_groups)
    handles = [*replay.bases, *replay.changes]
    around = segments_around(connection, job_id, share.key_groups, handles, way, here)
    if around is None:
        return None
    return FoldInput(
        share=share,
        as_of_checkpoint=as_of,
        handles=around,
        changes=len(replay.changes),
        replaces=placed_in(connection, job_id, share.key_groups),
        read_at=connection.scalars(select(func.now())).one(),
    )


def broken_for_next(damage: Sequence[Damage], as_of: int) -> list[Damage]:
    """Returns what is damaged of the state as of a checkpoint in what those to come read of it."""
    return [one for one in damage if one.is_needed_by_next and one.as_of_checkpoint <= as_of]
