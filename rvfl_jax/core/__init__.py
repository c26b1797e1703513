"""What all else agrees on: types, checks, how objects are shown and handed to other processes."""
