"""Sharding plans: rules by name pattern, read with line numbers, matched over a module tree.

- `hpx.plan.plan.ShardingPlan`: a plan, from a YAML file or from Python.
- `hpx.plan.pattern.Pattern` and `hpx.plan.automaton.RuleSet`: one pattern; all of them at once.
- `hpx.plan.matching.match_parameters`: which rule wins for which parameter.
- `hpx.plan.findings`: what is wrong between a plan and a model.
- `hpx.plan.tried.tried`: the rules that lost for one parameter, and why.
"""

from hpx.plan.automaton import RuleSet, State
from hpx.plan.findings import (
    conflicting_names,
    fold_names,
    never_winning,
    plan_findings,
    uncovered,
    unmatched,
)
from hpx.plan.matching import MatchResult, match_parameters
from hpx.plan.pattern import Pattern, Progress
from hpx.plan.plan import ShardingPlan
from hpx.plan.rules import Heads, Packed, Rule, Tied
from hpx.plan.tried import Tried, tried

__all__ = [
    "Heads",
    "MatchResult",
    "Packed",
    "Pattern",
    "Progress",
    "Rule",
    "RuleSet",
    "ShardingPlan",
    "State",
    "Tied",
    "Tried",
    "conflicting_names",
    "fold_names",
    "match_parameters",
    "never_winning",
    "plan_findings",
    "tried",
    "uncovered",
    "unmatched",
]
