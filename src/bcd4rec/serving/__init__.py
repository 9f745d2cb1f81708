"""HTTP in front of a policy: recommendations out, responses in, without torch."""
