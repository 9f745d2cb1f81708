"""Agents that learn a policy from logged transitions: one implementation, two switches (quantile head, constraint)."""
