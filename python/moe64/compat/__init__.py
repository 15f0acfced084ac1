"""Drop-in replacements of functions that people call today: transformer_engine and unsloth."""
