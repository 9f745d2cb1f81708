"""Networks: encoders of states, quantile heads, the behaviour model, and pre-training of item embeddings."""
