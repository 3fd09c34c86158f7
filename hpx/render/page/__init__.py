"""The page: one html file with the whole tree, unfolded, and every parameter's history.

1. `page` is what ``-f html`` writes. Everything is in the file: markup, style, script and data; the
   content security policy allows these by their hashes and nothing else, no network either.
2. The data are JSON (`hpx.render.page.data`). Subtrees that are equal in every respect are written
   once, so that 45,000 parameters take less than 0.1 MB; the script unfolds them and folds them
   again as the reader wants.
3. The parts lie beside this file: ``page.html``, ``page.css`` and the ``.js`` files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.render.options import Options
from hpx.render.page.assemble import assemble
from hpx.render.page.data import page_data
from hpx.render.prepare import prepare
from hpx.render.subject import Subject

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = ["page"]


def page(target: Run | ModuleGraph | Subject, options: Options) -> bytes:
    """The page of a run or graph: one html file, UTF-8.

    Args:
        target: What to show.
        options: How; what only concerns other formats is ignored.

    Raises:
        UsageError: There is no such step or root, or a pattern matches nothing.
        MeshError: The mesh has no such rank.
    """
    subject = prepare(target, options)
    graph = subject.graph
    start = graph.root
    if options.root is not None:
        node = graph.get(options.root)
        start = node.id if isinstance(node, ModuleNode) else node.parent
    data = page_data(subject, options, start=start)
    return assemble(data, title=str(data["title"]))
