"""The command `cairn`: what there is, what is in it, and keeping it clean."""

from __future__ import annotations

from cairn.cli.app import main

__all__ = ["main"]
