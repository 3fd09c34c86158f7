"""What the inert reader says of a checkpoint is what torch says of the loaded one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hpx.errors import InputError
from hpx.graph.from_module import graph_from_module
from hpx.graph.from_names import NamedTensor
from hpx.graph.storage import Storages
from hpx.graph.torch_file import read_torch_file
from hpx.inert import open_inert

OLD_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
)
"""Those that the old format has as well."""
DTYPES = (
    *OLD_DTYPES,
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64),
)
StateDict = dict[str, torch.Tensor]


def loaded(path: Path, *, old: bool = False) -> list[NamedTensor]:
    """The entries of the file as torch loads them; the old format cannot be mapped."""
    content = torch.load(path, map_location="cpu", mmap=not old, weights_only=False)
    storages = Storages()
    found: list[NamedTensor] = []

    def name_of(number: int, name: str = "") -> str:
        return name or found[number].name

    for name, tensor in content.items():
        same = storages.claim(len(found), tensor, (-1, name), name_of)
        grad = tensor.requires_grad if type(tensor) is nn.Parameter else True
        strided = tensor.layout is torch.strided
        found.append(
            NamedTensor(
                name,
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                tensor.stride() if strided else None,
                grad,
                same_as=None if same is None else found[same].same_as or found[same].name,
            )
        )
    return found


def both(
    content: StateDict, protocol: int = 2, *, old: bool = False
) -> tuple[list[NamedTensor], list[NamedTensor]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt"
        torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not old)
        return read_torch_file(path, "m.pt").tensors, loaded(path, old=old)


def tied() -> StateDict:
    weight = nn.Parameter(torch.zeros(3, 2))
    return {"a": weight, "b": weight, "c": nn.Parameter(weight.detach()), "d": weight.data}


def frozen() -> StateDict:
    return {"a": nn.Parameter(torch.zeros(2), requires_grad=False), "b": torch.zeros(2)}


def views() -> StateDict:
    flat = torch.zeros(24)
    return {"a": flat[:6].view(2, 3), "b": flat[6:12].view(3, 2), "c": flat[12:], "d": flat[12:]}


def columns() -> StateDict:
    whole = torch.zeros(4, 6)
    return {"left": whole[:, :3], "right": whole[:, 3:], "again": whole[:, :3]}


def shapes() -> StateDict:
    return {
        "none": torch.zeros(()),
        "empty": torch.zeros(0),
        "also empty": torch.zeros(3, 0, 2),
        "four": torch.zeros(2, 1, 3, 1),
        "turned": torch.zeros(2, 3, 4).permute(2, 0, 1),
        "expanded": torch.zeros(1, 3).expand(4, 3),
    }


def dtypes() -> StateDict:
    return {str(dtype): torch.zeros(3).to(dtype) for dtype in DTYPES}


def old_dtypes() -> StateDict:
    return {str(dtype): torch.zeros(3).to(dtype) for dtype in OLD_DTYPES}


def sparse() -> StateDict:
    return {"coo": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr()}


def meta() -> StateDict:
    return {"m": torch.zeros(3, 4, device="meta").t(), "p": nn.Parameter(torch.zeros(1))}


def quantized() -> StateDict:
    return {"q": torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8)}


def attributes() -> StateDict:
    weight = nn.Parameter(torch.zeros(2))
    weight.tag = 3  # type: ignore[attr-defined]
    return {"w": weight}


MAKERS = (tied, frozen, views, columns, shapes, old_dtypes, sparse, meta, attributes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [*MAKERS, dtypes, quantized])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_state_dict_is_read_as_torch_loads_it(
    make: Callable[[], StateDict], protocol: int
) -> None:
    inert, real = both(make(), protocol)
    assert inert == real


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MAKERS)
def test_a_state_dict_in_the_old_format_is_read_as_torch_loads_it(
    make: Callable[[], StateDict],
) -> None:
    inert, real = both(make(), old=True)
    assert inert == real


@st.composite
def state_dicts(draw: st.DrawFn) -> StateDict:
    """Tensors of a few storages: whole, cut by rows, turned, or the same again."""
    content: StateDict = {}
    for number in range(draw(st.integers(1, 6))):
        earlier = list(content.values())
        again = draw(st.booleans())
        if earlier and again:
            tensor = earlier[draw(st.integers(0, len(earlier) - 1))]
            rows = draw(st.integers(0, tensor.shape[0])) if tensor.dim() else 0
            tensor = tensor if draw(st.booleans()) or not rows else tensor.detach()[rows:]
        else:
            shape = draw(st.lists(st.integers(0, 3), max_size=4))
            tensor = torch.zeros(shape).to(draw(st.sampled_from(DTYPES)))
        if tensor.dim() > 1 and draw(st.booleans()):
            tensor = tensor.detach().transpose(0, 1)
        content[f"t{number}"] = (
            nn.Parameter(tensor, draw(st.booleans()))
            if (tensor.is_floating_point() and draw(st.booleans()))
            else tensor
        )
    return content


@settings(max_examples=150)
@given(content=state_dicts())
def test_any_state_dict_is_read_or_refused_as_torch_loads_it(content: StateDict) -> None:
    try:
        inert, real = both(content)
    except InputError as refused:  # by one of the two; the other has to refuse as well
        with TemporaryDirectory() as folder:
            path = Path(folder) / "m.pt"
            torch.save(content, path)
            with pytest.raises(InputError) as caught:
                loaded(path)
        assert str(caught.value) == str(refused).removeprefix("m.pt: ")  # noqa: PT017
    else:
        assert inert == real


# -- whole modules -------------------------------------------------------------------------------


class Own(nn.Module):
    """A bit of everything that an importer looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.use_bias = True
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.zeros(3), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(3))
        self.again = self.blocks[0]
        self.table = torch.zeros(2, 2)
        self.scale = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.scale.tag = 3  # type: ignore[attr-defined]
        self.missing = None
        self.activation = torch.nn.functional.gelu


def hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(print)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        Own,
        hooked,
        lambda: nn.Linear(2, 3),
        lambda: nn.Transformer(8, 2, 1, 1, 16),
        lambda: nn.LSTM(4, 5, 2),
        lambda: nn.DataParallel(Own()),
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.zeros(2))}),
        lambda: nn.Sequential(),
    ],
)
@pytest.mark.parametrize("protocol", [1, 2, 4])
def test_a_pickled_module_is_read_as_the_importer_sees_it(
    make: Callable[[], nn.Module], protocol: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.pt"
    torch.save(make(), path, pickle_protocol=protocol)
    real = graph_from_module(torch.load(path, weights_only=False))
    assert open_inert(path) == real
