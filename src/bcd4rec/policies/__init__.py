"""What recommends: scores for states, and the rules that make slates of them."""
