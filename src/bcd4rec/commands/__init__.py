"""One file for each command; a command imports what it needs when it runs, so that `--help` is quick."""
