"""Experiments on the library; each package holds its own command and its results."""
