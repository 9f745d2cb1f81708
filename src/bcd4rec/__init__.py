"""bcd4rec: from impression logs to a better recommendation policy, shown before it ships."""

__version__ = "0.1.0"
