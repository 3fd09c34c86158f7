"""The plugin's own tests run where it is installed: tests/docs/test_plugin.py does both."""

collect_ignore = ["tests"]
