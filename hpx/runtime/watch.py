"""Whether code between layers that are cut on the sequence mixes positions: a look at one run.

What stands between the boundaries of a stream is code that nobody has declared: a mean over the
tokens, a shift, an addition of the whole embedding. A rank has some of the positions, so it would
compute something else there, mostly without an error of torch. So the first run that can tell is
watched, operation by operation; later ones cost nothing.

A floating tensor of three dims, of which the second one is as long as a rank's part of the
sequence, is taken for the stream. With one position on each rank any tensor could be it: such a run
is not watched, the next one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from hpx.errors import NotRunnableError
from hpx.runtime.around import calls_of
from hpx.runtime.sequence import own_length

if TYPE_CHECKING:
    from hpx.runtime.stream import Stream

__all__ = ["Watch"]

_ALONG: Final = (
    *("mean", "sum", "prod", "amax", "amin", "max", "min", "any", "all", "median", "mode"),
    *("argmax", "argmin", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm"),
    *("softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "cummax", "cummin"),
    *("logcumsumexp", "sort", "argsort", "topk", "kthvalue", "flip", "roll", "select", "slice"),
    *("constant_pad_nd", "cat", "index", "index_select", "split", "split_with_sizes", "unbind"),
    *("gather", "scatter", "scatter_add", "index_add", "index_copy", "index_fill", "unfold"),
    *("transpose", "permute", "bmm", "baddbmm"),
)
"""Operations that do not work position by position, if their dim is that of positions."""
_BESIDE: Final = (
    *("add", "sub", "rsub", "mul", "div", "cat", "stack", "where", "lerp", "addcmul"),
    *("maximum", "minimum"),
)
"""Operations that put two tensors of one shape together."""
_ALL: Final = frozenset(
    [
        *("mean", "sum", "prod", "amax", "amin", "max", "min", "any", "all", "median", "argmax"),
        *("argmin", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "roll"),
    ]
)
"""Those that go over everything if no dim is named, or None is."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what mixes positions while the layers of a stream run.

    Args:
        stream: The stream.
        runner: The module that runs its layers.
        ranks: How many ranks share it.
    """

    def __init__(self, stream: Stream, runner: nn.Module, ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = stream
        self.runner = runner
        self.ranks = ranks

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled layers are compiled all the same, and not looked into."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        own = own_length(self.stream.length, self.ranks)
        if own > 1 and self.stream.between:
            found = next(_mixed(func, args, kwargs, own, self.stream.length), None)
            # An interrupted run leaves its watch behind until the next one.
            if found is not None and calls_of(self.runner):
                raise self._refusal(found, own)
        return func(*args, **kwargs)

    def end(self) -> None:
        """Stop watching."""
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _refusal(self, found: str, own: int) -> NotRunnableError:
        stream = self.stream
        return NotRunnableError(
            f"the code of layer {stream.at} of {stream.name or 'the model'}, or what runs it after"
            f" that layer, looks at other positions: {found}",
            why=f"under sequence parallelism a rank has {own} of {stream.length} positions there",
            fix="put it into a module of its own, which is then computed with all positions, or"
            " insert-collectives{sp=false}",
        )


def _mixed(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], own: int, length: int
) -> Iterator[str]:
    """What an operation does across positions."""
    name = func._schema.name.split("::")[-1].strip("_")
    if name in _BESIDE and own != length:
        shapes = [tuple(one.shape) for one in _tensors(args)]
        parts = [one for one in shapes if len(one) == 3 and one[1] == own]
        wholes = [one for one in shapes if len(one) in (2, 3) and one[-2] == length]
        if parts and wholes and parts[0][2] == wholes[0][-1]:
            yield f"{name} of {list(parts[0])} and {list(wholes[0])}"
    if name not in _ALONG:
        return
    given = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)}
    given.update(kwargs)
    stream = next((one for one in _tensors(args) if _is_stream(one, own)), None)
    if stream is not None and _touches(name, given, stream, own):
        yield f"{name} along dim 1 of {list(stream.shape)}"


def _touches(name: str, given: Mapping[str, Any], x: Tensor, own: int) -> bool:
    """Whether an operation of `_ALONG` goes over, or picks some of, the positions."""
    if name == "constant_pad_nd":
        return any(given["pad"][2:4])
    if name == "index":
        indices = list(given["indices"])
        return len(indices) > 1 and indices[1] is not None
    if name in ("bmm", "baddbmm"):  # rows of the second matrices are summed over
        second = given.get("mat2", given.get("batch2"))
        return isinstance(second, Tensor) and _is_stream(second, own)
    if name == "permute":  # where positions are in another dim, they are not seen any more
        return bool(given["dims"][1] % x.dim() != 1)
    if name == "transpose":
        return 1 in {given["dim0"] % x.dim(), given["dim1"] % x.dim()}
    dims = given.get("dim", given.get("dims", given.get("dimension")))
    if dims is None or dims == []:
        return name in _ALL
    if isinstance(dims, int):
        dims = [dims]
    if not all(isinstance(dim, int) for dim in dims) or 1 not in {dim % x.dim() for dim in dims}:
        return False
    if name == "slice":
        start, end, step = given.get("start"), given.get("end"), given.get("step", 1)
        return bool(start) or (end is not None and end < own) or step != 1
    return True


def _is_stream(x: Tensor, own: int) -> bool:
    return x.dim() == 3 and x.shape[1] == own and x.is_floating_point()


def _tensors(args: object) -> Iterator[Tensor]:
    if isinstance(args, Tensor):
        yield args
    elif isinstance(args, list | tuple):
        for one in args:
            yield from _tensors(one)
