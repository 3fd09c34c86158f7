"""What the tests of commands share: models, plans, and the answer of a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = [
    "LLAMA",
    "LLAMA_PLAN",
    "MESH",
    "MOE",
    "MOE_PLAN",
    "PROGRAM",
    "STACKED",
    "Answer",
    "Command",
    "error_line",
    "program_of",
]

LLAMA = "hpx.bundled:tiny_llama"
LLAMA_PLAN = """\
version: 1
mesh: dp=2,tp=4
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
  "model.layers.*.{input,post_attention}_layernorm.weight": replicate
  "model.norm.weight": replicate
  "lm_head.weight": {tp: S(0)}
"""
MOE = "hpx.bundled:tiny_moe"
MOE_PLAN = """\
version: 1
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.gate.weight": replicate
  "model.layers.*.mlp.experts.*": {ep: S(0)}
  "model.layers.*.{input,post_attention}_layernorm.weight": replicate
  "model.norm.weight": replicate
  "lm_head.weight": {tp: S(0)}
"""
MESH = "dp=2,tp=2,ep=4"
STACKED = "model.layers.0.mlp.experts.gate_proj"
PROGRAM = "import sys; from hpx.tools.cli import main; sys.exit(main())"


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Answer]


def error_line(answer: Answer, code: int) -> str:
    """The one line on stderr of bad input."""
    assert answer.code == code, answer
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("hpx: error: ")
    return line


def program_of(code: str, *arguments: object) -> list[str]:
    """A process of its own that runs this code."""
    return [sys.executable, "-P", "-c", code, *map(str, arguments)]
