"""The metastore's transactions: every function takes a connection and changes rows, nothing else.

`job` is what a running job does, `cleanup` what may be deleted, `savepoints` what is pinned,
written as manifests, and adopted or rebuilt from them. No object store, no Spark.
"""
