"""What a check finds, told once for all parameters of which it is true."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from hpx.errors import HpxError, Numbers, PassError
from hpx.plan import Rule

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["Finding", "grouped"]


class Finding(NamedTuple):
    """One thing that stands against a decision: about which node, what, why, and the way out."""

    node: int
    what: str
    why: str | None = None
    fix: str | None = None
    rule: Rule | None = None
    kind: type[HpxError] = PassError
    check: str = ""
    numbers: Numbers = ()


def grouped(ctx: PassContext, findings: Iterable[Finding], check: str = "") -> list[HpxError]:
    """One error for findings that differ in their node only, in the order of the first of each.

    Args:
        ctx: Whose errors they are.
        findings: The findings.
        check: Which check found those that do not say so themselves.
    """
    nodes: dict[Finding, list[int]] = {}
    for finding in findings:
        nodes.setdefault(finding._replace(node=-1), []).append(finding.node)
    return [
        ctx.error(
            f.what,
            node=ids,
            why=f.why,
            fix=f.fix,
            rule=f.rule,
            kind=f.kind,
            check=f.check or check,
            numbers=f.numbers,
        )
        for f, ids in nodes.items()
    ]
