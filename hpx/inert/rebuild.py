"""What torch's pickles call to make tensors: here each makes the description of one.

Signatures are those of ``torch._utils._rebuild_*`` and ``torch._tensor._rebuild_from_type_v2``. A
call takes constant time: arguments are referred to, not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpx.inert.dtypes import DTYPES, ITEM_SIZES
from hpx.inert.effects import set_items
from hpx.inert.errors import DamagedError
from hpx.inert.values import Bag, Name, Object, Storage, Tensor

__all__ = ["call_of", "storage_from"]

_MOST_DIMS: Final = 64
_LARGEST: Final = 1 << 63
_MOST_OF_PARAMETER: Final = 4

Args = tuple[object, ...]


def _sizes(value: object, what: str) -> tuple[int, ...]:
    """Numbers of a shape or of strides."""
    if type(value) is not tuple or len(value) > _MOST_DIMS:
        raise DamagedError(f"a tensor's {what} is no tuple of at most {_MOST_DIMS} numbers")
    for size in value:
        if type(size) is not int or size < 0 or size >= _LARGEST:
            raise DamagedError(f"a tensor's {what} has something that is no size")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise DamagedError("a tensor's requires_grad is neither true nor false")
    return value


def _dtype(value: object) -> str:
    if type(value) is Name and value.text.startswith("torch."):
        dtype = value.text.removeprefix("torch.")
        if dtype in DTYPES:
            return dtype
    raise DamagedError("a tensor's dtype is none of torch's")


def _view(args: Args, dtype: str | None = None) -> Tensor:
    """A tensor of strides, from storage, offset, shape and strides."""
    storage, offset, shape, strides = args
    if type(storage) is not Storage:
        raise DamagedError("a tensor has no storage")
    if type(offset) is not int or not 0 <= offset < _LARGEST:
        raise DamagedError("a tensor begins before its storage")
    shape, strides = _sizes(shape, "shape"), _sizes(strides, "strides")
    if len(shape) != len(strides):
        raise DamagedError(f"a tensor has {len(shape)} dims and {len(strides)} strides")
    return Tensor(storage, offset, shape, strides, False, dtype or storage.dtype)


def _tensor(args: Args) -> Tensor:
    return _view(args)


def _tensor_v2(args: Args) -> Tensor:
    tensor = _view(args[:4])
    tensor.requires_grad = _flag(args[4])
    return tensor


def _tensor_v3(args: Args) -> Tensor:
    tensor = _view(args[:4], _dtype(args[6]))
    tensor.requires_grad = _flag(args[4])
    return tensor


def _quantized(args: Args) -> Tensor:
    tensor = _view(args[:4])
    tensor.requires_grad = _flag(args[5])
    return tensor


def _without_storage(args: Args) -> Tensor:
    dtype, shape, strides, grad = args
    sizes = _sizes(shape, "shape")
    return Tensor(None, 0, sizes, _sizes(strides, "strides"), _flag(grad), _dtype(dtype))


def _wrapper(args: Args) -> Tensor:
    cls, dtype, shape, strides, _, _, _, grad = args
    tensor = _without_storage((dtype, shape, strides, grad))
    tensor.cls = _class(cls)
    return tensor


def _sparse(args: Args) -> Tensor:
    _, data = args
    if type(data) is not tuple or len(data) not in (3, 4):
        raise DamagedError("a sparse tensor lacks its parts")
    # Indices, values, size, coalesced; or two kinds of indices, values, size.
    coo = len(data) == 3 or type(data[3]) is bool
    values, shape = (data[1], data[2]) if coo else (data[2], data[3])
    if type(values) is not Tensor:
        raise DamagedError("a sparse tensor has no values")
    return Tensor(None, 0, _sizes(shape, "shape"), None, values.requires_grad, values.dtype)


def _from_tensor(args: Args) -> Tensor:
    data, dtype, _, grad = args
    if type(data) is not Tensor:
        raise DamagedError("a tensor is made of something that is none")
    return Tensor(None, 0, data.shape, data.strides, _flag(grad), _dtype(dtype))


def _from_numpy(args: Args) -> Tensor:
    data, dtype, _, grad = args
    # An array's state is version, shape, dtype, order and bytes.
    state = data.state if type(data) is Object else None
    if type(state) is not tuple or len(state) != 5:
        raise DamagedError("a tensor is made of something that is no array")
    shape = _sizes(state[1], "shape")
    return Tensor(None, 0, shape, None, _flag(grad), _dtype(dtype))


def _parameter(args: Args) -> object:
    if len(args) > _MOST_OF_PARAMETER:  # to copy many, time and again, fills the memory
        raise DamagedError("a parameter is made of too many values")
    data, grad, _, *state = args
    if type(data) is not Tensor:
        return Object(None, args)
    made = data.copy()
    made.requires_grad = _flag(grad)
    made.cls = made.cls or "Parameter"
    made.extra = (*state, data.extra, {"_is_param": True})
    return made


def _from_type(args: Args) -> object:
    function, cls, inner, state = args
    if type(inner) is not tuple:
        raise DamagedError("a tensor is made from something that is no tuple")
    made = function.call(inner) if type(function) is Name else None
    if type(made) is not Tensor:
        return Object(cls, inner, state)
    made = made.copy()
    if _class(cls) not in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        made.cls = _class(cls)
    made.extra = state
    return made


def _class(cls: object) -> str:
    if type(cls) is not Name:
        raise DamagedError("a tensor's class is no name")
    return cls.text


# -- plain values ------------------------------------------------------------------------------


def _size(args: Args) -> object:
    (sizes,) = args or ((),)
    return tuple(sizes) if type(sizes) is list and len(sizes) <= _MOST_DIMS else sizes


def _bag(args: Args) -> object:
    (items,) = args or ([],)
    return Bag(items) if type(items) is list else Bag([items])


def _default_mapping(args: Args) -> object:
    return {} if len(args) < 2 else args[1]


def _ordered(args: Args) -> object:
    """A mapping; old protocols give all of its pairs at once, in a list that nobody else has."""
    made: dict[object, object] = {}
    if args and type(args[0]) is list:
        for pair in args[0]:
            if type(pair) not in (list, tuple):
                raise DamagedError("a mapping has an entry that is no pair")
            set_items(made, list(pair))
        args[0].clear()  # so that no list is gone through twice
    elif args and type(args[0]) is dict:
        made = args[0]
    return made


def _reconstructed(args: Args) -> object:
    cls, base, state = args
    if type(cls) is Name:
        cls.made = True
    return Object(cls, (base, state))


def _kept(args: Args) -> object:
    """The first argument as it is."""
    return args[0] if args else None


def _plain(text: str) -> Callable[[Args], object]:
    name = Name(text, None)
    return lambda args: Object(name, args)


_REBUILD: Final = "torch._utils._rebuild_"
_CALLS: Final[dict[str, Callable[[Args], object]]] = {
    f"{_REBUILD}tensor": _tensor,
    f"{_REBUILD}tensor_v2": _tensor_v2,
    f"{_REBUILD}tensor_v3": _tensor_v3,
    f"{_REBUILD}qtensor": _quantized,
    f"{_REBUILD}meta_tensor_no_storage": _without_storage,
    f"{_REBUILD}wrapper_subclass": _wrapper,
    f"{_REBUILD}sparse_tensor": _sparse,
    f"{_REBUILD}device_tensor_from_cpu_tensor": _from_tensor,
    f"{_REBUILD}device_tensor_from_numpy": _from_numpy,
    f"{_REBUILD}xla_tensor": _from_numpy,
    f"{_REBUILD}parameter": _parameter,
    f"{_REBUILD}parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch._tensor._rebuild_from_type": _from_type,
    "torch.Size": _size,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default_mapping,
    "collections.Counter": _kept,
    "builtins.dict": _ordered,
    "builtins.set": _bag,
    "builtins.frozenset": _bag,
    "copyreg._reconstructor": _reconstructed,
}
_HARMLESS_CALLS: Final = (
    f"{_REBUILD}nested_tensor",
    "torch.nested._internal.nested_tensor._rebuild_njt",
    "torch.device",
    "torch.serialization._get_layout",
    "torch._C.Generator",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.tensor.placement_types.Shard",
    "torch.distributed.tensor.placement_types.Replicate",
    "torch.distributed.tensor.placement_types._StridedShard",
    "_codecs.encode",
    *(f"builtins.{name}" for name in ("bytearray", "bytes", "complex", "float", "int", "list")),
    *(f"builtins.{name}" for name in ("object", "range", "slice", "str", "tuple")),
    *(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")),
    *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
    *(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")),
    "numpy.dtype",
    "numpy.ndarray",
    "argparse.Namespace",
    "collections.deque",
    *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    "decimal.Decimal",
    "fractions.Fraction",
    "functools.partial",
    *(f"pathlib.{name}" for name in ("Path", "PosixPath", "WindowsPath")),
    *(f"pathlib.Pure{name}" for name in ("Path", "PosixPath", "WindowsPath")),
    "types.SimpleNamespace",
    "uuid.UUID",
)
"""Calls that only make a plain value."""
_ALL: Final = _CALLS | {name: _plain(name) for name in _HARMLESS_CALLS}


def call_of(text: str) -> Callable[[Args], object] | None:
    """What stands for a call of this name; None where it is not known to be harmless."""
    return _ALL.get(text)


def storage_from(identity: object) -> Storage:
    """The storage that a persistent id describes: kind, class, key, place, elements, view.

    Raises:
        DamagedError: It describes none.
    """
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
        raise DamagedError("it refers to something outside of it that is no storage")
    cls, key, device, count = identity[1:5]
    dtype = cls.elements if type(cls) is Name else None
    if dtype is None:
        raise DamagedError("a storage's class is none of torch's")
    if type(key) is not str or type(device) is not str:
        raise DamagedError("a storage has no name")
    if type(count) is not int or count < 0 or count >= _LARGEST:
        raise DamagedError("a storage's size is no number")
    device = device.partition(":")[0]
    size_in_bytes = count * ITEM_SIZES[dtype]
    start = 0
    if len(identity) == 6 and identity[5] is not None:  # a view: its key, first element and size
        start, size = _sizes(identity[5][1:], "view")
        if start + size > count:
            raise DamagedError("a view of a storage ends behind it")
    return tuple.__new__(Storage, (key, dtype, count, device, size_in_bytes, start))
