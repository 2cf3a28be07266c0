"""Entry points of Spark applications."""
