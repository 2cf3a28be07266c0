"""Transactions of maintenance runs: stored plans, who applies them, and what they decide."""
