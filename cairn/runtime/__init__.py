"""What runs in Spark: the plan on the driver, and what each task does in each batch.

By concern, lowest first; a folder imports only what stands before it (tests/layers.py):
`executor` and `processing`, `commit`, `materialization`, `task`, `driver`.
"""
