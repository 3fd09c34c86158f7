"""Deriving a plan: roles of modules from structure first, the model's own plan, names last."""

from hpx.derive.derive import derive_plan, plan

__all__ = ["derive_plan", "plan"]
