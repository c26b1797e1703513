"""Files that are whole or not there, and what a record tells of its making."""
