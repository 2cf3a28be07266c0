"""Transactions of a running job: runs, begin of a batch, acks, files, materializations."""
