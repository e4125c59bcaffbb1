"""The HTTP service over a saved model."""
