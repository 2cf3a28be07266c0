"""The session of the conformance tests, for those that compare the engines here."""

from __future__ import annotations

from tests.conformance.conftest import session

__all__ = ["session"]
