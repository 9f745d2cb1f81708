"""Logs → sessions → transitions."""
