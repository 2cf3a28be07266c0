"""What the driver tells every task of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from cairn.keygroups import KeyGroupRange, range_of
from cairn.settings import Settings
from cairn.state.handle import VariableSpec
from metastore.batches import BatchRef

KEY_GROUP_COLUMN = "__cairn_key_group"


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One run of one stateful operator, fixed when the query's plan is built."""

    job: str
    job_id: str
    run_id: str
    epoch: int
    parallelism: int
    storage: str
    metastore_url: str = field(repr=False)
    settings: Settings
    key_columns: tuple[str, ...]
    key_schema: dict[str, Any]
    input_schema: StructType
    output_schema: StructType
    states: Mapping[str, VariableSpec]

    def key_groups(self, subtask: int) -> KeyGroupRange:
        """Returns the key groups that a subtask of this run owns."""
        return range_of(subtask, self.parallelism, self.settings.max_parallelism)

    def batch(self, query_id: str, batch_id: int) -> BatchRef:
        """Returns the reference to one of the run's batches."""
        return BatchRef(self.job, self.job_id, self.epoch, query_id, batch_id)
