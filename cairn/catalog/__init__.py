"""The metastore's transactions: every function takes a connection and changes rows, nothing else.

`job` is for a running job, `cleanup` for deletions, `savepoints` for pins,
written as manifests, and adopted or rebuilt from them. No object store, no Spark.
"""
