"""Transactions of the cleanup: its snapshot, applying a plan, delete intents."""
