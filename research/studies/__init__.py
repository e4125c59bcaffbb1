"""Our own studies: each computes, writes its figures to a file beside it, and publishes them in the documentation."""
