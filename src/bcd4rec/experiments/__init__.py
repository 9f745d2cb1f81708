"""Whole experiments: each table as data, and the runs that fill it."""
