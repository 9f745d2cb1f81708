"""Results for people: plots, tables and one self-contained HTML page."""
