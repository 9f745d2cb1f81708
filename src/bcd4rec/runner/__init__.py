"""Work as tasks: what is to be made, where it is kept, and who makes it."""
