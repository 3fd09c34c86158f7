"""The built-in passes, one per file; the framework finds them by entry point only."""
