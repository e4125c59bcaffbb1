"""The paper's experiments, our own studies, and the published results: made with torchsdm, no part of its wheel."""
