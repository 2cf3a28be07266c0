"""A processor's methods on the rows of one subtask: rows and frames by key, in and out, spilled.

Needs neither storage nor PostgreSQL. Imports of the runtime: nothing.
"""
