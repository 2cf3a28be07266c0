"""Acknowledgements: seal before ack, in one transaction per group.

The transaction may be run again with the same arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from cairn.batch_ref import BatchRef
from cairn.catalog.connections import array, call_and_let_go
from cairn.catalog.job.files import WrittenFile, seals
from cairn.catalog.job.group_commits import Ack, rows_of
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.upload_stats import UploadStats

_ACKNOWLEDGE = """
    SELECT * FROM cairn.acknowledge(
        %(job_id)s, %(epoch)s, %(run_id)s, %(query_id)s, %(checkpoint_id)s, %(file_ids)s,
        %(sizes)s, %(acked)s, %(attempts)s, %(owners)s, %(starts)s, %(ends)s, %(commits)s
    )
"""


def acknowledge(
    connection: Connection,
    batch: BatchRef,
    *,
    checkpoint_id: int,
    tm_id: str,
    acks: Sequence[Ack],
    files: Mapping[str, WrittenFile],
    uploads: Sequence[UploadStats] = (),
    pool_wait_ms: int = 0,
) -> None:
    """Seals a group's files, adds their segments and acks, and completes the checkpoint if whole.

    `files` are by the path that their segments have. A later attempt of a subtask replaces an
    earlier one's ack and kills its segments; an ack that is older than the one recorded is passed
    over; one that is already recorded changes nothing. The first ack ever binds the job to its
    query. `uploads` is what writing the files was like, and `pool_wait_ms` how long the group
    waited before. It is one statement, which may be a transaction of its own. Where acks come too
    late, it changes nothing and is asked again without them.

    Raises:
        FencedError: the checkpoint is no longer open to this run, or a file was condemned.
        RefusedError: the job belongs to another query, or a segment is not of its subtask's key
            groups.
    """
    winners = _newest(acks)
    while True:
        segments = [(ack.subtask, one.key_groups) for ack in winners for one in ack.segments]
        rows = rows_of(winners, tm_id, files, uploads, pool_wait_ms)
        facts: dict[str, Any] = {
            "job_id": batch.job_id,
            "epoch": batch.epoch,
            "run_id": batch.run_id,
            "query_id": batch.query_id,
            "checkpoint_id": checkpoint_id,
            **seals(files.values()),
            "acked": array(ack.subtask for ack in winners),
            "attempts": array(ack.task_attempt for ack in winners),
            "owners": array(subtask for subtask, _ in segments),
            "starts": array(key_groups.start for _, key_groups in segments),
            "ends": array(key_groups.end for _, key_groups in segments),
            "commits": json.dumps(rows),
        }
        # Groups acknowledge one after the other, and must not wait for each other's disk.
        found = call_and_let_go(connection, _ACKNOWLEDGE, facts)
        if found["bound_query"] != batch.query_id:
            raise refuse_second_query(batch.job, found["bound_query"], batch.query_id)
        if found["late"] is None:
            return
        winners = [ack for ack in winners if ack.subtask not in found["late"]]


def _newest(acks: Iterable[Ack]) -> list[Ack]:
    """Returns the ack of each subtask's latest attempt."""
    newest: dict[int, Ack] = {}
    for ack in acks:
        if ack.subtask not in newest or newest[ack.subtask].task_attempt < ack.task_attempt:
            newest[ack.subtask] = ack
    return list(newest.values())
