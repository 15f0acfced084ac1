"""Stand-ins with the signatures of functions that people call today: transformer_engine and unsloth."""
