"""Who this metastore is, and the roots in storage that it owns."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, func, text
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base


class Metastore(Base):
    """One row, made by the migration: the id of this metastore, and of every copy of it."""

    __tablename__ = "metastore"
    __table_args__ = (CheckConstraint("is_only", name="one_row"),)
    is_only: Mapped[bool] = mapped_column(primary_key=True, server_default="true")
    metastore_id: Mapped[UUID] = mapped_column(server_default=text("gen_random_uuid()"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Ownership(Base):
    """One row per time that this metastore has made a job's root its own; the newest counts.

    The row comes before the owner object of its generation, which has its id.
    """

    __tablename__ = "ownerships"
    __table_args__ = (CheckConstraint("generation > 0", name="counted"),)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"), primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    ownership_id: Mapped[UUID] = mapped_column(unique=True)
    database_id: Mapped[str]
    """The database then, by `cairn.database_id`: a copy of it is another one."""
    timeline: Mapped[int]
    """Its history then, by `cairn.timeline`: a failover or a restore begins another one."""
    began_at: Mapped[datetime] = mapped_column(server_default=func.now())
    written_at: Mapped[datetime | None]
    """When the owner object was known to be in storage."""
    confirmed_at: Mapped[datetime | None]
    """Since when sweeps may set aside what was there before this metastore had the root."""
