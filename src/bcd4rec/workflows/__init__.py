"""What people do with a log: train, compare, evaluate on the log itself, judge, tune; the commands are thin over it."""
