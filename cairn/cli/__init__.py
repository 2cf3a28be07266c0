"""The command `cairn`: lists jobs and their content, and cleans up."""

from __future__ import annotations

from cairn.cli.app import main

__all__ = ["main"]
