"""The compared methods: tuned alike, and held against other codes."""
