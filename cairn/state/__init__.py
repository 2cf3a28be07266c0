"""What a stateful processor sees of its state, and the bytes behind it. Needs no Spark."""
