"""A small configuration with the structure of a large one, for `hpx check --shrink`.

1. Widths, heads, experts, vocabulary and positions become small. What tp divides it still divides,
   and what it does not divide it still does not; query heads for a key head, a hidden size that is
   heads times head size, groups of experts and a missing latent rank stay such.
2. Of the layers those are kept that are of a kind of their own: the first dense ones and the ones
   with experts, sliding and full attention. Two remain at least.
3. That no kind of module is lost is checked on the meta device. If one is, more layers are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpx.errors import InputError
from hpx.mesh import MeshSpec

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Shrunk", "shrink", "structure"]

Values = dict[str, Any]

_HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "dim")
_LIKE_HIDDEN: Final = ("word_embed_proj_dim", "embedding_size", "pooler_output_size")
_LAYERS: Final = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("encoder_layers", "decoder_layers", "num_decoder_layers"),
)
_HEADS: Final = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads"),
    *("encoder_attention_heads", "decoder_attention_heads"),
)
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num")
_HEAD_DIM: Final = ("head_dim", "d_kv", "kv_channels")
_INNER: Final = (
    *("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "ffn_config_size"),
)
_POSITIONS: Final = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
    *("max_source_positions", "max_target_positions"),
)
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN: Final = ("num_experts_per_tok", "top_k", "moe_top_k", "experts_per_token")
_FIXED: Final = {
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "qk_head_dim": 12,
    "v_head_dim": 8,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MORE: Final = (2, 3, 4, 6, 8, 12, 16, 24)
_TOKENS: Final = ("_token_id", "_token_index")
_PERIODS: Final = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")


@dataclass
class Shrunk:
    """What came of it.

    Attributes:
        values: The small configuration.
        sizes: Old size to new size, for the parts of fused weights that a plan declares.
        counts: Old number of heads to new number, for how often these parts repeat.
        layers: How many layers there were, and are.
    """

    values: Values
    sizes: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    layers: tuple[int, int] = (0, 0)


def shrink(values: Mapping[str, Any], spec: MeshSpec, shown: str) -> Shrunk:
    """The small configuration of a model of transformers.

    Args:
        values: What stands in ``config.json``.
        spec: The mesh that is to divide it.
        shown: How errors name it.

    Raises:
        InputError: The model cannot be built, or loses a kind of module however it is shrunk.
    """
    from hpx.graph.from_config import config_of_values, model_of_values

    full = config_of_values(values, shown).to_dict()
    full |= {key: values[key] for key in ("architectures",) if key in values}
    wanted = structure(model_of_values(full, shown))
    number = max((n for _, n in _layer_counts(full)), default=0)
    error: InputError | None = None
    for keep in (None, *(n for n in _MORE if n < number), number):
        made = Shrunk(_copied(full))
        _Sizes(made, spec).shrink(made.values, keep)
        try:
            found = structure(model_of_values(made.values, f"the shrunk {shown}"))
        except InputError as failure:
            error = failure
            continue
        if found == wanted:
            made.layers = number, max((n for _, n in _layer_counts(made.values)), default=0)
            return made
    raise InputError(
        f"{shown} cannot be shrunk",
        why=str(error) if error else "a kind of module is lost however many layers are kept",
        fix="--no-shrink, or name a factory that builds a small model",
    )


def structure(module: nn.Module) -> object:
    """What a model is made of, whatever its sizes and however often a layer repeats."""
    from torch import nn

    own = frozenset((name, p.dim()) for name, p in module._parameters.items() if p is not None)
    kinds = frozenset(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, str | bool) and name != "training" and not name.startswith("_")
    )
    windows = frozenset(
        (name, value is None) for name, value in vars(module).items() if "window" in name
    )
    children = [(name, structure(child)) for name, child in module.named_children()]
    if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
        return type(module), own, frozenset(below for _, below in children)
    return type(module), own, kinds, windows, frozenset(children)


def _copied(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _copied(value) for key, value in values.items()}
    return list(values) if isinstance(values, list | tuple) else values


def _layer_counts(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in values.items():
        if key in _LAYERS and _is_size(value):
            yield key, value
        elif isinstance(value, Mapping):
            yield from _layer_counts(value)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class _Sizes:
    """Shrinks the values of a configuration, and those of the ones inside it."""

    def __init__(self, made: Shrunk, spec: MeshSpec) -> None:
        self.made = made
        self.tp = spec.size("tp", 1)
        self.ep = spec.size("ep", 1)
        self.unit = self.tp if self.tp > 1 else 2
        self.vocabulary = 0
        self._old_kv = 0

    def shrink(self, values: Values, keep: int | None) -> None:
        """Shrink in place; ``keep`` layers from the first on, or one of each kind."""
        for value in list(values.values()):
            if isinstance(value, dict) and {*value} & {*_HIDDEN, *_LAYERS}:
                self.shrink(value, keep)
        self._widths(values)
        self._experts(values)
        self._tokens(values)
        for key in _LAYERS:
            if _is_size(values.get(key)):
                _keep_layers(values, key, keep)
        for key, size in _FIXED.items():
            if _is_size(values.get(key)) and values[key] > size:
                self._note(values, key, size)
        self._linear_heads(values)
        if _is_size(values.get("image_size")) and _is_size(values.get("patch_size")):
            values["patch_size"] = min(values["patch_size"], 8)
            values["image_size"] = 2 * values["patch_size"]

    def _note(self, values: Values, key: str, size: int, *, count: bool = False) -> None:
        table = self.made.counts if count else self.made.sizes
        old, values[key] = values[key], size
        table[old] = size

    def _like(self, old: int, new: int) -> int:
        """The number, or the next one that tp divides if it divides the old one, and else not."""
        while (old % self.tp == 0) != (new % self.tp == 0):
            new += 1
        return new

    def _few(self, old: int) -> int:
        """A few heads: two for each rank, or one if there is but one."""
        if old % self.unit == 0:
            return self.unit * min(2, old // self.unit)
        return old if old <= 2 * self.unit else self._like(old, self.unit + 1)

    def _widths(self, values: Values) -> None:
        hidden = next((key for key in _HIDDEN if _is_size(values.get(key))), None)
        heads = [key for key in _HEADS if _is_size(values.get(key))]
        if hidden is None or not heads:
            return
        width, number = values[hidden], values[heads[0]]
        kv = next((key for key in _KV_HEADS if _is_size(values.get(key))), None)
        own = next((key for key in _HEAD_DIM if _is_size(values.get(key))), None)
        size = values[own] if own else width // number
        new_size = min(size, 16 if _is_partial(values) else 8)
        new_number = self._heads(values, heads, kv)
        if own is not None:
            latent = _is_size(values.get("qk_rope_head_dim"))
            self._note(values, own, _FIXED["qk_rope_head_dim"] if latent else new_size)
        new_width = new_number * new_size
        if own is not None and width != number * size and not _is_size(values.get("kv_lora_rank")):
            new_width = new_width * 3 // 2 if width > number * size else new_width // 2
        sizes = self.made.sizes
        sizes[number * size] = new_number * new_size
        for key in _KV_HEADS:
            if key in values and self._old_kv:
                sizes[self._old_kv * size] = values[key] * new_size
        for key in _LIKE_HIDDEN:
            if values.get(key) == width:
                values[key] = new_width
        self._inner(values, width, new_width)
        self._note(values, hidden, new_width)
        _shorten_rope(values, new_size)
        for key in _POSITIONS:
            if _is_size(values.get(key)):
                values[key] = min(values[key], max(64, 24 * self.unit))

    def _heads(self, values: Values, heads: list[str], kv: str | None) -> int:
        """Shrink the counts of heads; the new number of query heads."""
        number = values[heads[0]]
        self._old_kv = values[kv] if kv is not None else 0
        if kv is None or self._old_kv == number:
            new = self._few(number)
            if kv is not None:
                self._note(values, kv, new, count=True)
        else:
            new_kv = self._few(self._old_kv)
            ratio = number // self._old_kv
            choices = [new_kv * r for r in range(2, ratio + 1)]
            fitting = (n for n in choices if (n % self.tp == 0) == (number % self.tp == 0))
            new = next(fitting, new_kv * ratio)
            self._note(values, kv, new_kv, count=True)
        for key in heads:
            self._note(values, key, new, count=True)
        return new

    def _inner(self, values: Values, width: int, new_width: int) -> None:
        for key, old in list(values.items()):
            if not _is_size(old):
                continue
            if key in _INNER:
                ratio = old // width if old % width == 0 else 0
                new = ratio * new_width if 0 < ratio <= 4 else 2 * new_width + 4 * self.unit
            elif "intermediate_size" in key:
                new = (12 if "moe" in key else 10) * self.unit
            else:
                continue
            self._note(values, key, min(old, self._like(old, new)))

    def _linear_heads(self, values: Values) -> None:
        keys, number = values.get("linear_num_key_heads"), values.get("linear_num_value_heads")
        if _is_size(keys) and _is_size(number):
            assert isinstance(keys, int)
            assert isinstance(number, int)
            values["linear_num_key_heads"] = self._few(keys)
            ratio = min(2, max(1, number // keys))
            values["linear_num_value_heads"] = ratio * values["linear_num_key_heads"]

    def _experts(self, values: Values) -> None:
        for key in _EXPERTS:
            if _is_size(values.get(key)):
                most = max(4, self.tp, 2 * self.ep)
                values[key] = min(values[key], most)
                while values[key] < most and values[key] % max(self.ep, 1):
                    values[key] += 1
        for key in _CHOSEN:
            if _is_size(values.get(key)):
                values[key] = min(values[key], 2)
        if _is_size(values.get("n_group")) and values["n_group"] > 1:
            values["n_group"] = 2
            if "topk_group" in values:
                values["topk_group"] = 1

    def _tokens(self, values: Values) -> None:
        old = values.get("vocab_size")
        if _is_size(old):
            assert isinstance(old, int)
            self.vocabulary = min(old, self._like(old, 24 * self.unit))
            self._note(values, "vocab_size", self.vocabulary)
        taken = 0
        for key, value in values.items():
            if not key.endswith(_TOKENS) or not self.vocabulary:
                continue
            if _is_size(value) and value >= self.vocabulary:
                taken += 1
                values[key] = self.vocabulary - taken
            elif isinstance(value, list):
                values[key] = [min(one, self.vocabulary - 1) for one in value]


def _is_partial(values: Values) -> bool:
    """Whether a part of each head alone is rotated: it needs an even number of channels."""
    inner = values.get("rope_parameters") or {}
    names = ("partial_rotary_factor", "rotary_pct")
    factors = [table.get(name) for table in (values, inner) for name in names]
    return any(isinstance(factor, float) and factor < 1 for factor in factors)


def _shorten_rope(values: Values, head_dim: int) -> None:
    """Cut the factors of a rotary embedding to the channels that are left."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = values.get(name)
        if not isinstance(rope, dict):
            continue
        part = rope.get("partial_rotary_factor", values.get("partial_rotary_factor")) or 1.0
        half = int(head_dim * part) // 2
        for key in ("short_factor", "long_factor"):
            if isinstance(rope.get(key), list):
                rope[key] = rope[key][:half]
        if isinstance(rope.get("mrope_section"), list):
            rope["mrope_section"] = [half - 2, 1, 1]


def _keep_layers(values: Values, key: str, keep: int | None) -> None:
    """Leave out layers of which there is one of the same kind."""
    number: int = values[key]
    lists = [name for name, value in values.items() if isinstance(value, list)]
    lists = [name for name in lists if len(values[name]) == number and name != "architectures"]
    dense = values.get("first_k_dense_replace")
    only = values.get("mlp_only_layers")
    chosen: list[int] = list(range(min(keep or 0, number)))
    if keep is None:
        kinds: dict[object, int] = {}
        for index in range(number):
            kind = (
                *(str(values[name][index]) for name in lists),
                _is_size(dense) and index < (dense or 0),
                isinstance(only, list) and index in only,
                *((index + 1) % values[p] == 0 for p in _PERIODS if _is_size(values.get(p))),
            )
            kinds.setdefault(kind, index)
        chosen = sorted(kinds.values())
        chosen += [index for index in range(number) if index not in chosen][: 2 - len(chosen)]
        chosen.sort()
    values[key] = len(chosen)
    for name in lists:
        values[name] = [values[name][index] for index in chosen]
    if _is_size(dense):
        values["first_k_dense_replace"] = sum(index < (dense or 0) for index in chosen)
    if isinstance(only, list):
        values["mlp_only_layers"] = [at for at, index in enumerate(chosen) if index in only]
