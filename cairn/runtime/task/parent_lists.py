"""A subtask's operator lists from the parent's checkpoint into the batch, and into the spool."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from cairn.handles import SegmentHandle
from cairn.runtime.executor.spool import Spool
from cairn.runtime.task.attempt import Attempt, FinishedSubtask
from cairn.segments.operator_segment import decode, encode, read_lists
from cairn.segments.reader import READ_AHEAD
from cairn.state.operator_lists import Lists, redistribute
from metastore.enums import SegmentKind


class ParentLists:
    """The operator lists of an attempt's parent, which each of its subtasks takes over.

    Within a run, a subtask keeps its own. The first batch of a run redistributes what the
    subtasks of the parent had: for that it reads their segments, once for all subtasks of the task.
    Again for the same parent and parallelism, it gives the same.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._run = attempt.manager.run
        self._of_all: dict[int, Lists] | None = None

    def of(self, subtask: int) -> Lists:
        """Returns the lists of a subtask at the begin of the batch, for the batch to change.

        Ask before the subtask runs: that takes the parent's segments out of the spool.

        Raises:
            CorruptSegmentError: a segment's bytes are not those that were written.
            StorageError: a segment cannot be read.
        """
        parent, run = self._attempt.start.parent, self._run
        if parent is None or not parent.lists:
            return {}
        # What a job was restored with has no acks, and is of the run that restored it.
        if parent.run_id == run.run_id and parent.acks:
            return self._read([subtask]).get(subtask, {})
        # Then only its own segment is read: a union list needs those of all.
        keeps_own = parent.parallelism == run.parallelism and not run.union_lists
        return redistribute(
            self._read([subtask]) if keeps_own else self._all(),
            parent.parallelism,
            subtask=subtask,
            parallelism=run.parallelism,
            split=run.split_lists,
            union=run.union_lists,
        )

    def _all(self) -> dict[int, Lists]:
        if self._of_all is None:
            parent = self._attempt.start.parent
            self._of_all = self._read(parent.lists) if parent else {}
        return self._of_all

    def _read(self, subtasks: Iterable[int]) -> dict[int, Lists]:
        parent = self._attempt.start.parent
        known = parent.lists if parent else {}
        wanted = [(subtask, known[subtask]) for subtask in subtasks if subtask in known]
        if len(wanted) <= 1:
            return {subtask: self._read_one(subtask, handle) for subtask, handle in wanted}
        with ThreadPoolExecutor(READ_AHEAD) as readers:
            lists = readers.map(lambda one: self._read_one(*one), wanted)
            return dict(zip((subtask for subtask, _ in wanted), lists, strict=True))

    def _read_one(self, subtask: int, handle: SegmentHandle) -> Lists:
        data = self._spooled(subtask, handle)
        if data is not None:
            return decode(data)
        return read_lists(self._attempt.store, handle, job=self._run.job)

    def _spooled(self, subtask: int, handle: SegmentHandle) -> bytes | None:
        """Returns the segment's bytes if the attempt that wrote it ran on this executor."""
        parent, manager = self._attempt.start.parent, self._attempt.manager
        if parent is None or subtask not in parent.acks:
            return None
        attempt_id = parent.acks[subtask].attempt_id
        spool = Spool(
            manager=manager,
            checkpoint_id=parent.checkpoint_id,
            attempt_id=attempt_id,
            subtask=subtask,
        )
        return spool.find(handle)


def spool_lists(attempt: Attempt, finished: FinishedSubtask, lists: Lists) -> FinishedSubtask:
    """Writes a subtask's operator lists to the spool; returns its work with their segment.

    They are written whole in every batch, changed or not, so that each checkpoint has its own and
    nothing of an older one is needed for them. Empty ones have no segment.
    """
    entries = sum(map(len, lists.values()))
    # No segment, and so no file, for a job that only declares a list.
    if not entries:
        return finished
    kind, spool = SegmentKind.OPERATOR, attempt.spool_of(finished.log.subtask)
    segment = spool.add(encode(lists, metadata=spool.metadata(kind)), entries, kind)
    return replace(finished, lists=(segment,))
