"""hpx prepares a PyTorch model for tensor, expert and data parallel training."""

__version__ = "0.1.0"
