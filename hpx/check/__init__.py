"""Static checks on a graph with layouts; each returns errors or facts, none raises."""
