"""Streams of batches, from arrays or from anything that gives batches, and their labels."""
