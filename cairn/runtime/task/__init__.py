"""What one Spark task does in one batch: the order of everything below it.

Imports of the runtime: all but `driver`.
"""
