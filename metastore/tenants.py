"""Tenants: roles of the server whose logins see their own jobs only."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base


class Tenant(Base):
    """One row per tenant. Its name is that of a role, whose members are its logins."""

    __tablename__ = "tenants"
    name: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
