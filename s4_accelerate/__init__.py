"""S4 Weights."""
