"""Passes and the pipeline that runs them.

A *pass* (``Pass``) is one step that edits a graph; its ``PassInfo`` declares which *facts* it
requires, provides and invalidates, and which node keys it writes. ``register`` makes it known, and
so does an entry point in the group ``hpx.passes``. A *pipeline* is a list of passes, as text
(``parse_pipeline``, ``format_pipeline``) or as Python (``as_passes``). ``schedule`` puts it in the
order that the declarations ask for, with the reason for every step.

>>> from dataclasses import dataclass
>>> from hpx.pipeline import Fact, Pass, PassInfo, format_pipeline, schedule
>>> CLEAN = Fact("clean", lambda graph, request: [])
>>> @dataclass(frozen=True, kw_only=True)
... class Wash(Pass):
...     info = PassInfo(name="wash", provides=CLEAN)
...     minutes: int = 30
...     def run(self, graph, ctx): ...
>>> @dataclass(frozen=True, kw_only=True)
... class Iron(Pass):
...     info = PassInfo(name="iron", requires=CLEAN)
...     def run(self, graph, ctx): ...
>>> format_pipeline([Iron(), Wash(minutes=60)])
'iron, wash{minutes=60}'
>>> for step in schedule([Iron(), Wash()], entry_facts=()).steps:
...     print(step.index, step.name, *step.because)
1 wash
2 iron wash provides clean
"""

from hpx.pipeline.info import Fact, Pass, PassInfo
from hpx.pipeline.registry import Origin, PassRegistry, register
from hpx.pipeline.schedule import Schedule, ScheduleEdge, Step, schedule
from hpx.pipeline.textform import PRESETS, Pipeline, as_passes, format_pipeline, parse_pipeline

__all__ = [
    "PRESETS",
    "Fact",
    "Origin",
    "Pass",
    "PassInfo",
    "PassRegistry",
    "Pipeline",
    "Schedule",
    "ScheduleEdge",
    "Step",
    "as_passes",
    "format_pipeline",
    "parse_pipeline",
    "register",
    "schedule",
]
