"""A policy behind HTTP, and what it showed and heard, kept for the next log."""
