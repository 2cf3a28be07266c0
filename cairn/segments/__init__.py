"""Segments: changes of state as an Arrow file, and reading them back checked."""
