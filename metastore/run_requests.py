"""What people ask of a job's running query, and the result."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import RequestKind, RequestStatus


class RunRequest(Base):
    """One row per request to a job's running query. A job has at most one that is not over."""

    __tablename__ = "run_requests"
    __table_args__ = (
        one_of("kind", RequestKind),
        one_of("status", RequestStatus),
        CheckConstraint(
            "(kind = 'rescale') = (parallelism IS NOT NULL) AND parallelism > 0 IS NOT FALSE",
            name="rescale_has_parallelism",
        ),
        Index(
            "uq_run_requests__open",
            "job_id",
            unique=True,
            postgresql_where=text("status IN ('OPEN', 'TAKEN')"),
        ),
        Index(None, "job_id", "requested_at"),
    )
    request_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    kind: Mapped[RequestKind] = mapped_column(enum_of(RequestKind))
    parallelism: Mapped[int | None]
    """That is asked for, of a rescale."""
    instead_of: Mapped[int | None]
    """The parallelism in the query's code when a driver took it: it holds until that is another."""
    overruled_at: Mapped[datetime | None]
    """Since when the code names another parallelism, and this one holds no more."""
    savepoint: Mapped[str | None]
    """The name of the savepoint to make, of a stop; null: none."""
    requested_by: Mapped[str] = mapped_column(server_default=text("SESSION_USER"))
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    status: Mapped[RequestStatus] = mapped_column(
        enum_of(RequestStatus), server_default=RequestStatus.OPEN
    )
    taken_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    checkpoint_id: Mapped[int | None]
    """The first whole checkpoint at the new parallelism; the last one of a query that stopped."""
    message: Mapped[str | None]
    """Why it failed or was withdrawn."""
