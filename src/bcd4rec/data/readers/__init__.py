"""Raw logs of other formats become the canonical impression log: one file for each format."""
