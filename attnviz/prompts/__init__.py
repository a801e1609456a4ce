"""What questions about prompts share: how prompts are read, encoded, studied and named."""
