"""Learners on streams: one compiled scan, evaluated, checkpointed and spread over devices."""
