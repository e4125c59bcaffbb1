"""The paper's experiments, and a user's own, from raw text to tables and claims: small files, one command."""
