"""The table of state variables. `metastore.models` has the others."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, SmallInteger, text
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import StateKind


class StateVariable(Base):
    """One row per state variable of a job; the id is its place in binary keys, for ever."""

    __tablename__ = "state_variables"
    __table_args__ = (
        Index(
            "uq_state_variables__name",
            "job_id",
            "name",
            unique=True,
            postgresql_where=text("dropped_at IS NULL"),
        ),
        one_of("kind", StateKind),
    )
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"), primary_key=True)
    state_id: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    name: Mapped[str]
    kind: Mapped[StateKind] = mapped_column(enum_of(StateKind))
    value_schema: Mapped[dict[str, Any]]
    """The layout of stored values: fields keep their place, new ones are added at the end."""
    user_key_schema: Mapped[dict[str, Any] | None]
    has_ttl: Mapped[bool] = mapped_column(server_default="false")
    dropped_at: Mapped[datetime | None]
    """When a run that deletes it began; its entries are deleted by that run's batches."""
