"""Savepoints: pinned checkpoints with a manifest, and what can be made of manifests alone."""
