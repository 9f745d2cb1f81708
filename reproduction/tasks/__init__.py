"""What the paper's tables and figures are made of: logs, learned users, trained policies, and meetings of the two."""
