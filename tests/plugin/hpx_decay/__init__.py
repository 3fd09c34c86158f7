"""Passes for hpx about weight decay; hpx finds them by entry point."""
