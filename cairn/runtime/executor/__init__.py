"""What the tasks of one executor share: the run, a directory, locks, the local state of subtasks.

Imports of the runtime: nothing.
"""
