"""One training step in float64, whole and sharded, on the same data: what should be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import hpx
from hpx import bundled
from hpx.plan import ShardingPlan
from hpx.runtime.apply import apply
from hpx.runtime.record import Applied

LLAMA: Final = """\
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
"""
MLP: Final = """\
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
"""
HEAD: Final = '  "lm_head.weight": {tp: S(0)}\n'
REST: Final = "default: replicate\n"
GPT2: Final = """\
params:
  "transformer.h.*.mlp.c_fc.weight": {tp: S(1)}
  "transformer.h.*.mlp.c_proj.weight": {tp: S(0)}
  "transformer.wte.weight": {tp: S(0)}
"""
VOCABULARY: Final = 48


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "pad_token_id": 3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    # With biases everywhere: those of o_proj and down_proj are rowwise.
    config = LlamaConfig(**_sizes(attention_bias=True, mlp_bias=True))
    return LlamaForCausalLM(config)


def qwen2() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_sizes(tie_word_embeddings=False)))


def qwen3() -> nn.Module:
    """A norm of q and k inside the region: whole, and with a part of its gradient on each rank."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_sizes(head_dim=8, tie_word_embeddings=False)))


def gemma() -> nn.Module:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM(GemmaConfig(**_sizes(head_dim=8)))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **rates, **tokens))


def tiny_llama() -> nn.Module:
    return bundled.tiny_llama()


def tiny_moe() -> nn.Module:
    return bundled.tiny_moe()


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], str]]] = {
    "llama": (llama, LLAMA + MLP + HEAD + REST),
    "qwen2": (qwen2, LLAMA + MLP + HEAD + REST),
    "qwen3": (qwen3, LLAMA + MLP + HEAD + REST),
    "gemma": (gemma, LLAMA + MLP + REST),
    "gpt2": (gpt2, GPT2 + REST),
    "tiny_llama": (tiny_llama, LLAMA + MLP + HEAD + REST),
    "tiny_moe": (tiny_moe, LLAMA + HEAD + REST),
}


def built(name: str) -> nn.Module:
    """The same model on every rank, in float64; its biases are not the zeros they start from."""
    torch.manual_seed(0)
    model = MODELS[name][0]().double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "embed_tokens" in path:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def batches(number: int) -> list[Tensor]:
    """Different tokens for every data-parallel rank, padding and both halves of the table among
    them."""
    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (number, 2, 9))
    ids[:, 0, :2] = 3
    return list(ids)


def forward(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and loss."""
    out = (
        model(ids) if "bundled" in type(model).__module__ else model(input_ids=ids, use_cache=False)
    )
    logits = out if isinstance(out, Tensor) else out.logits
    assert isinstance(logits, Tensor)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return logits, loss


def step(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def whole_step(name: str, number: int) -> dict[str, Tensor]:
    """Outputs, losses, gradients and new parameters of the unsharded model."""
    model = built(name)
    optimizer = step(model)
    found: dict[str, Tensor] = {}
    for index, ids in enumerate(batches(number)):
        logits, loss = forward(model, ids)
        (loss / number).backward()
        found[f"logits of batch {index}"], found[f"loss of batch {index}"] = logits, loss
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f"gradient of {path}"] = parameter.grad.clone()
    optimizer.step()
    for path, parameter in model.named_parameters():
        found[f"new {path}"] = parameter
    return {key: value.detach().clone() for key, value in found.items()}


def sharded_step(
    name: str,
    mesh: str,
    pipeline: str,
    wrap: Callable[[nn.Module, Applied], Any] | None = None,
) -> dict[str, Tensor]:
    """The same of the sharded model, whole tensors gathered; batches of this dp rank only."""
    model = built(name)
    plan = ShardingPlan.from_text(MODELS[name][1], "plan.yaml")
    applied = apply(model, plan, mesh, pipeline)
    if wrap is not None:
        wrap(model, applied)
    coordinate = applied.meshes.coordinate("dense")
    number = applied.meshes.spec.size("dp", 1)
    optimizer = step(model)
    index = coordinate.get("dp", 0)
    logits, loss = forward(model, batches(number)[index])
    (loss if wrap is not None else loss / number).backward()
    found = {f"logits of batch {index}": logits, f"loss of batch {index}": loss}
    if number > 1 and wrap is None:
        _sum_over_dp(model, applied)
    found |= {f"gradient of {p}": whole(t) for p, t in gradients(model)}
    optimizer.step()
    found |= {f"new {p}": whole(t) for p, t in model.named_parameters()}
    return {key: value.detach().clone() for key, value in found.items()}


def gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        yield path, parameter.grad


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _sum_over_dp(model: nn.Module, applied: Applied) -> None:
    group = applied.meshes.sub("dp").get_group()
    for _, gradient in gradients(model):
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        dist.all_reduce(local, group=group)


def deviation(found: Tensor, expected: Tensor) -> float:
    """``max|a-b| / max|b|``."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    scale = expected.abs().max().item()
    return (found - expected).abs().max().item() / (scale or 1.0)


def unstacked(applied_names: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stacked experts under the names of the unsharded model."""
    found: dict[str, Tensor] = {}
    for key, value in applied_names.items():
        what, path = key.rsplit(" ", 1)
        inner, _, leaf = path.rpartition(".experts.")
        if inner and leaf and not leaf[0].isdigit():
            for index, part in enumerate(value):
                found[f"{what} {inner}.experts.{index}.{leaf}.weight"] = part
        else:
            found[key] = value
    assert found.keys() <= expected.keys(), found.keys() - expected.keys()
    return found


def deviations(
    name: str,
    mesh: str,
    pipeline: str = "@run",
    wrap: Callable[[nn.Module, Applied], Any] | None = None,
) -> dict[str, float]:
    """By tensor, how far the sharded step is from the unsharded one, on this rank."""
    number = hpx.MeshSpec.parse(mesh).size("dp", 1)
    expected = whole_step(name, number)
    found = unstacked(sharded_step(name, mesh, pipeline, wrap), expected)
    return {key: deviation(value, expected[key]) for key, value in found.items()}
