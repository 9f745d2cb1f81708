"""Users to try a policy on: environments that step many of them at once, and rollouts that write logs."""
