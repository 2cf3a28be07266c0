"""Transactions of savepoints: pins, manifests, adopting a checkpoint, rebuilding a metastore."""
