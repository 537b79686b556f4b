"""Measuring: systems side by side, replay speed, the worker's overhead, a soak."""
