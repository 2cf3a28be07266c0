"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int], None]
"""Told what was done, in words, and how much of it since it was told last."""


def silent(_what: str, _count: int) -> None:
    """Tells nobody."""
