"""Pass ``fx-transform``: any ``torch.fx`` graph transform, on modules of the model."""

from __future__ import annotations

from dataclasses import dataclass

from hpx.errors import HpxError, did_you_mean
from hpx.graph import ModuleGraph
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.plan import Pattern

__all__ = ["FxTransform"]

_INSTALLER = "hpx.flow.transform:install"


@register
@dataclass(frozen=True, kw_only=True)
class FxTransform(Pass):
    """Run a ``torch.fx`` graph transform on the modules that a pattern names.

    1. ``target``: a pattern of modules, as in plan files; one that matches none is an error.
    2. ``using``: ``package.module:function``, which takes a ``torch.fx.GraphModule`` and changes
       it, or gives another one. Imported when the pass runs: a name that is not there is an error.
    3. The graph stays as it is: one event for each pass says what is installed where. When the
       model is materialized, each module is traced (modules with parameters or hooks are called
       as they are), and computes what the changed graph says. ``hpx.restore`` takes it back.
    4. Refused then: a module that cannot be traced, a transform that adds tensors.
    5. It comes before ``insert-collectives``, whose hooks no transform may move.
    """

    info = PassInfo(name="fx-transform", before={"insert-collectives"}, writes={"attach"})

    target: str
    """Pattern of the modules."""
    using: str
    """The function: ``package.module:function``."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Find the modules, and attach."""
        from hpx.flow.transform import find_transform

        pattern = Pattern.parse(self.target)
        modules = [node.id for node in graph.modules()]
        found = [m for m in modules if any(pattern.matches(name) for name in graph.names(m))]
        if not found:
            near = did_you_mean(self.target, [graph.path(node) for node in modules])
            raise ctx.error(f"target '{self.target}' matches no module", fix=near or None)
        try:
            find_transform(self.using)
        except HpxError as error:
            raise ctx.error(error.what, why=error.why, fix=error.fix) from None
        for node in found:
            name = graph.path(node) or "the model"
            options: dict[str, object] = {"using": self.using, "name": name}
            ctx.attach(node, _INSTALLER, options, why=f"its code is changed by {self.using}")
