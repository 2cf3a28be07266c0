"""What runs in Spark: on the driver when a plan is built, and in its tasks."""
