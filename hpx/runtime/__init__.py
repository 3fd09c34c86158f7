"""Carrying a run out on a real model: parameters, containers, hooks, and the way back."""
