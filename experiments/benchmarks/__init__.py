"""What a step costs, against a literal transcription, other packages and the machine's limit."""
