"""Names that modules usually have, whole segments only; asked where structure does not tell.

``audio_proj`` ends in ``o_proj`` and ``seq_proj`` in ``q_proj``; neither is such a projection, so a
name is looked up as it stands and never searched for a part.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CROSS",
    "DOWN",
    "HEAD",
    "LATENT",
    "OUT",
    "POSITIONS",
    "SHARED",
    "TOKENS",
    "UP",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OUT: Final = _words(
    "o out o_proj out_proj oproj wo w_o to_out dense c_proj proj out_lin output_proj linear_out"
    " final_linear resid_proj"
)
"""The matrix that takes what attention gives."""
UP: Final = _words(
    "gate up gate_proj up_proj gate_up_proj w1 w3 fc1 fc_1 c_fc fc_in dense_h_to_4h lin1 linear1"
    " linear_1 wi wi_0 wi_1"
)
"""Matrices of a feed-forward block that read the stream."""
DOWN: Final = _words(
    "down down_proj w2 fc2 fc_2 c_proj fc_out dense_4h_to_h lin2 linear2 linear_2 wo"
)
"""The matrix of a feed-forward block that gives to the stream."""
LATENT: Final = _words("q_a_proj kv_a_proj kv_a_proj_with_mqa q_down_proj kv_down_proj wq_a wkv_a")
"""Down-projections to the latent vectors of latent attention."""
SHARED: Final = _words("shared_expert shared_experts shared_mlp")
"""Experts that every token goes through."""
TOKENS: Final = _words(
    "embed_tokens wte word_embeddings tok_embeddings embed_in token_embedding token_embeddings"
    " tok_emb token_emb tokens_embed"
)
"""Embeddings of a vocabulary."""
POSITIONS: Final = _words(
    "wpe embed_positions position_embeddings position_embedding pos_embed pos_emb pos_embedding"
    " positions_embed token_type_embeddings"
)
"""Tables of positions and segments."""
HEAD: Final = _words("lm_head embed_out output_projection")
"""Layers that score a vocabulary."""
CROSS: Final = _words(
    "cross_attn cross_attention crossattention encoder_attn encoder_attention enc_attn"
    " encdecattention multihead_attn"
)
"""Attention over a second stream."""
