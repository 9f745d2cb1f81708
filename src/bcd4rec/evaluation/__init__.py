"""What an impression log says about the policy that made it: metrics, intervals and summaries."""
