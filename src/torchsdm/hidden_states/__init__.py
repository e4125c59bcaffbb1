"""From text to hidden states: a frozen language model, a prompt, and what is kept of its states."""
