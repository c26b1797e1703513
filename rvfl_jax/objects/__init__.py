"""How objects are shown, and how they are handed to another process."""
