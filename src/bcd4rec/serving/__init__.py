"""A policy behind HTTP, without torch; what it showed and heard is kept for the next log."""
