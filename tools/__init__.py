"""The command lines of hpx: ``hpx`` and ``hpx-viz``."""
