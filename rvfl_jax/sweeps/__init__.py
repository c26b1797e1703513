"""Many configurations, seeds and task orders as one compiled program."""
