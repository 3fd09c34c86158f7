"""What ``hpx plan --check`` sums up: memory of a rank, communication, gradients, the proof."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hpx._text import bytes_text, counted
from hpx.check.gradients import Reduction, gradient_reductions
from hpx.check.memory import Held, Memory, memory
from hpx.check.subject import Subject
from hpx.check.traffic import Traffic, traffic
from hpx.run import Run
from hpx.tools._tables import Block, Table

if TYPE_CHECKING:
    from hpx.prove import Proof

__all__ = ["summary_blocks", "summary_json"]

_HEADINGS: Final = ("a rank holds", "parameters", "gradients", "AdamW", "total", "float32 copy")
_MAX_NAMES: Final = 4


def summary_json(run: Run, proof: Proof | None) -> dict[str, object]:
    """``{memory, communication, gradients, proof}``."""
    subject = Subject(run.graph, run.plan, run.mesh)
    return {
        "memory": memory(run.graph, run.mesh).to_json(),
        "communication": traffic(subject).to_json(),
        "gradients": [reduction.to_json() for reduction in gradient_reductions(subject)],
        "proof": None if proof is None else proof.to_json(),
    }


def summary_blocks(run: Run, proof: Proof | None) -> list[Block]:
    """The same, for people."""
    subject = Subject(run.graph, run.plan, run.mesh)
    held = memory(run.graph, run.mesh)
    blocks: list[Block] = ["", _memory_table(held), *_imbalance(held)]
    if lines := list(_traffic_lines(traffic(subject))):
        blocks += ["", "a rank sends", *lines]
    if found := gradient_reductions(subject):
        blocks += ["", "gradients of replicated parameters", *map(_reduction_line, found)]
    if proof is not None and not proof.unproven and not proof.problems:
        blocks += ["", str(proof)]
    return blocks


def _memory_table(held: Memory) -> Table:
    rows = [_memory_row("without FSDP", held.most)]
    if held.fsdp_most is not None:
        over = ", ".join(f"{'edp' if k == 'expert' else 'dp'} {n}" for k, n in held.data.items())
        rows.append(_memory_row(f"with FSDP over {over}", held.fsdp_most))
    return Table(_HEADINGS, tuple(rows), frozenset(_HEADINGS[1:]))


def _memory_row(name: str, held: Held) -> tuple[str, ...]:
    numbers = (held.parameters, held.gradients, held.optimizer, held.total, held.mixed_total)
    return (name, *map(bytes_text, numbers))


def _imbalance(held: Memory) -> Iterator[str]:
    if held.imbalance:
        yield (
            f"rank 0 holds {100 * held.imbalance:.1f} % more parameters than the last rank"
            f" ({bytes_text(held.least.parameters)})"
        )


def _traffic_lines(sent: Traffic) -> Iterator[str]:
    per_token = (
        (sent.tp_forward, f"forward, {counted(sent.reductions, 'all-reduce')} over tp"),
        (sent.tp_backward, "backward, all-reduces over tp"),
        (sent.tp_gather, "logits gathered over tp"),
        (sent.ep_exchange, f"tokens to {sent.chosen or 'each'} of the experts over ep, and back"),
    )
    per_step = (
        (sent.tp_gradients, "gradients of replicated parameters over tp"),
        (sent.fsdp_gather, "with FSDP: parameters gathered, forward and backward"),
        (sent.fsdp_reduce, "with FSDP: gradients reduced and scattered"),
        (sent.dp_reduce, "without FSDP: gradients reduced over the data axis"),
    )
    for unit, numbers in (("token", per_token), ("step", per_step)):
        for number, what in numbers:
            if number:
                yield f"  {bytes_text(number)} a {unit}: {what}"


def _reduction_line(reduction: Reduction) -> str:
    names = ", ".join(reduction.names[:_MAX_NAMES])
    more = len(reduction.names) - _MAX_NAMES
    rest = f", and {counted(more, 'more line')}; --json has them all" if more > 0 else ""
    return f"  {reduction}: {counted(reduction.number, 'parameter')}: {names}{rest}"
