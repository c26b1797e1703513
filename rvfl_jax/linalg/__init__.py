"""Precision, symmetric products and solves, and the update of a triangular factor."""
