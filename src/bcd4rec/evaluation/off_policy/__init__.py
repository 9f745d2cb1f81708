"""What a log can tell about a policy that did not write it."""
