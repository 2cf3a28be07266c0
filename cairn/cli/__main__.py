"""Runs the command as `python -m cairn.cli`."""

from __future__ import annotations

import sys

from cairn.cli.app import main

sys.exit(main())
