"""Which metastore owns a job's root in storage, told by objects that are written once."""
