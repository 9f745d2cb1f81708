"""What an unknown log may mean: its first rows, what each column holds, and a proposal with reasons."""
