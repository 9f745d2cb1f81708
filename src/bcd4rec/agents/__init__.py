"""Agents that learn a policy from logged transitions, one file each; what they have in common is in `agent`."""
