"""Read model files without running what is in them; torch is not needed."""
