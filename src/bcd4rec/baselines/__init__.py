"""Methods that learn from positive items alone."""
