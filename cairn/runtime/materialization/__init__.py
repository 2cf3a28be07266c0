"""Materialization compacts a subtask's changelog into bases and increments, off the batch path.

Imports of the runtime: `executor`, `commit`.
"""
