"""From a subtask's changes to an acknowledged checkpoint: changelog, files, uploads, group commit.

Imports of the runtime: `executor`.
"""
