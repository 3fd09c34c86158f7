"""What ranks do with models whose fused projections are reordered: steps, saving, the way back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

import hpx
from hpx.errors import HpxError
from hpx.numeric.measure import distance
from hpx.numeric.preparing import Subject, prepare
from hpx.runtime.record import Applied
from tests.distributed.equality import Wrap
from tests.distributed.equality_models import PADDING, VOCABULARY
from tests.distributed.test_apply_cases import differences
from tests.hpx.derive.models import family

__all__ = [
    "OTHERS",
    "PACKED",
    "orders_of",
    "packed_subject",
    "resumed",
    "saved",
    "there_and_back",
]

_GPT2: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_NEOX: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
_PHI3: dict[str, Any] = {"pad_token_id": PADDING}
_FALCON: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
_HEADS: dict[str, Any] = {"new_decoder_architecture": False, "multi_query": False}
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("phi3", _PHI3),
    "phi3, four kv heads": ("phi3", {**_PHI3, "num_key_value_heads": 4}),
    "gpt2": ("gpt2", _GPT2),
    "gpt_neox": ("gpt_neox", _NEOX),
    "falcon by group": ("falcon", _FALCON),
    "falcon by head": ("falcon", {**_FALCON, **_HEADS, "num_kv_heads": 4, "bias": True}),
}
"""Models with fused projections that are cut, and what is changed of their configs."""
_SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "glm": (
        *("GlmForCausalLM", "GlmConfig"),
        {**_SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
        | {"pad_token_id": 0, "attention_dropout": 0.0},
    ),
    "glm4": (
        *("Glm4ForCausalLM", "Glm4Config"),
        {**_SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
        | {"pad_token_id": 0, "attention_dropout": 0.0},
    ),
    "openai": (
        *("OpenAIGPTLMHeadModel", "OpenAIGPTConfig"),
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_GPT2},
    ),
    "imagegpt": (
        *("ImageGPTForCausalImageModeling", "ImageGPTConfig"),
        {
            "vocab_size": VOCABULARY + 1,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            **_GPT2,
        },
    ),
    "gpt_bigcode by head": (
        *("GPTBigCodeForCausalLM", "GPTBigCodeConfig"),
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_GPT2}
        | {"multi_query": False},
    ),
    "persimmon": (
        *("PersimmonForCausalLM", "PersimmonConfig"),
        {**_SMALL, "intermediate_size": 64, "pad_token_id": 0, "hidden_dropout": 0.0},
    ),
}
"""More of them: model class, config class, sizes."""


def built(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module
    if name in OTHERS:
        import transformers

        model_class, config_class, sizes = OTHERS[name]
        config = getattr(transformers, config_class)(**{"vocab_size": VOCABULARY, **sizes})
        model = getattr(transformers, model_class)._from_config(config)
    else:
        base, changes = PACKED[name]
        model = family(base, "cpu", vocab_size=VOCABULARY, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype)


def applied_to(model: nn.Module, mesh: str, pipeline: str = "@run") -> Applied:
    return hpx.apply(model, hpx.plan(model, mesh), mesh, pipeline, verify="full")


def packed_subject(
    name: str, mesh: str, pipeline: str = "@run", wrap: Wrap | None = None, repeat: int = 1
) -> Subject:
    """A model with fused projections on its derived plan, whose packed entries may be changed."""
    model = built(name, torch.float64)
    said = hpx.plan(model, mesh).to_yaml().replace("repeat: 1,", f"repeat: {repeat},")
    plan = hpx.ShardingPlan.from_text(said, "plan.yaml")
    return prepare(model, plan, mesh, pipeline, wrap=wrap, exact=wrap is None)


def orders_of(subject: Subject) -> list[str]:
    """The orders that were given."""
    nodes = subject.run.graph.parameters()
    return sorted({str(node.order) for node in nodes if node.order is not None})


def there_and_back(name: str, mesh: str, pipeline: str = "@run") -> list[str]:
    """What differs after `hpx.apply` and `hpx.restore`: values, names, attributes, configs."""
    model = built(name)
    before = copy.deepcopy(model.state_dict())
    integers = _integers(model)
    configs = [getattr(module, "config", None) for module in model.modules()]
    applied_to(model, mesh, pipeline)
    faults = [] if name == "gpt_neox" or _integers(model) != integers else ["nothing was divided"]
    hpx.restore(model)
    faults += differences(model.state_dict(), before)
    if _integers(model) != integers:
        faults.append("integers")
    after = [getattr(module, "config", None) for module in model.modules()]
    if any(a is not b for a, b in zip(configs, after, strict=True)):
        faults.append("configs")
    return faults


def _integers(model: nn.Module) -> list[dict[str, object]]:
    return [
        {
            **{k: v for k, v in vars(module).items() if type(v) is int},
            "heads": getattr(getattr(module, "config", None), "num_attention_heads", None),
        }
        for module in model.modules()
    ]


def saved(name: str, mesh: str, fsdp: bool) -> dict[str, Any]:
    """What is said of a stock state dict, and whether hpx's own is that of the unsharded model."""
    model = built(name)
    before = copy.deepcopy(model.state_dict())
    applied = applied_to(model, mesh)
    if fsdp:
        hpx.fully_shard(applied)
    owner = next(
        applied.run.graph.registered_path(node.parent)
        for node in applied.run.graph.parameters()
        if node.order is not None
    )
    order = next(n.order for n in applied.run.graph.parameters() if n.order is not None)
    weight = model.get_submodule(owner).weight
    assert isinstance(weight, DTensor)
    return {
        "stock": _said(model.state_dict),
        "part": _said(model.get_submodule(owner).state_dict),
        "distributed": _said(get_model_state_dict, model),
        "gathered": _said(
            get_model_state_dict, model, options=StateDictOptions(full_state_dict=True)
        ),
        "loaded": _said(model.load_state_dict, before),
        "loaded by hpx": [] if fsdp else _loaded(model, before),
        "something else loaded": _said(model.load_state_dict, {}, strict=False),
        "reordered": not torch.equal(_whole(weight), before[f"{owner}.weight"]),
        "order": str(order),
        "differences": differences(hpx.state_dict(model), before),
        "again": differences(hpx.state_dict(model), before),
    }


def resumed(name: str, mesh: str, onto: str, folder: str) -> list[str]:
    """A step, a checkpoint of pieces, a step; and from it the same second step elsewhere."""

    def made(mesh: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = built(name, torch.float64)
        hpx.fully_shard(applied_to(model, mesh))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.manual_seed(1)
        loss = model(torch.randint(VOCABULARY, (2, 8))).logits.square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = made(mesh)
    train(model, optimizer)
    with hpx.in_rank_order(model) as order:
        weights, moments = get_state_dict(model, optimizer)
    state_dict_saver.save(
        {"model": weights, "optimizer": moments, "order": order}, checkpoint_id=folder
    )
    saved = hpx.state_dict(model)
    train(model, optimizer)

    other, again = made(onto)
    with hpx.in_rank_order(other) as order:
        weights, moments = get_state_dict(other, again)
        state: dict[str, Any] = {"model": weights, "optimizer": moments, "order": order}
        try:
            state_dict_loader.load(state, checkpoint_id=folder)
        except Exception as error:  # noqa: BLE001 - torch wraps what an entry raises
            return [str(error)]
        set_state_dict(
            other, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    faults = differences(hpx.state_dict(other), saved)
    train(other, again)
    found, expected = hpx.state_dict(other), hpx.state_dict(model)
    faults += [k for k, v in found.items() if distance(v, expected[k]) > 1e-9]
    return [*faults, *([] if _said(model.state_dict) else ["the guard stayed open"])]


def _loaded(model: nn.Module, before: dict[str, Tensor]) -> list[str]:
    """What differs after other values were loaded, and then the first ones again."""
    other = {name: torch.randn_like(value) for name, value in before.items()}
    for tied in ("lm_head.weight", "transformer.wte.weight"):
        if "transformer.wte.weight" in other:
            other[tied] = other["transformer.wte.weight"]
    hpx.load_state_dict(model, other)
    faults = differences(hpx.state_dict(model), other)
    hpx.load_state_dict(model, before)
    return faults


def _whole(tensor: DTensor) -> Tensor:
    return tensor.full_tensor().detach()


def _said(function: Any, *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except HpxError as error:
        return str(error)
    return ""
