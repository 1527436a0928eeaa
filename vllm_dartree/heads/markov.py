"""DSpark's Markov heads (2607.05147 section 3.1): vanilla, gated and recurrent.

Unlike Domino they correct every depth, the first one too, from the previous token, which is the
anchor for depth 1. W1 is indexed by target ids, W2 has a row per draft id. Parameters carry the
checkpoint's names below ``markov_head.``: ``markov_w1``, ``markov_w2``, ``gate_proj``,
``joint_proj``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vllm_dartree.heads.base import CorrectionHead, add_correction

if TYPE_CHECKING:
    from vllm_dartree.tree.block import DraftBlock


class MarkovHead(CorrectionHead):
    """Vanilla: logits = U + W2 w(previous token), w(p) = W1[p]. The state is w(p), S = rank."""

    def __init__(
        self,
        hidden_size: int,
        rank: int,
        vocab_size: int,
        draft_vocab_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank, dtype=dtype, device=device)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False, dtype=dtype, device=device)

    def root_state(self, block: DraftBlock) -> Tensor:
        return self.markov_w1(block.anchors.unsqueeze(1))

    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        return add_correction(depth, block, state, self.markov_w2.weight)

    def advance(self, depth: int, block: DraftBlock, state: Tensor, tokens: Tensor) -> Tensor:
        return self.markov_w1(tokens)


class GatedMarkovHead(MarkovHead):
    """logits = U + W2 (sigmoid(W_g [h ; w(p)] + b_g) * w(p)). The state is w(p), S = rank."""

    def __init__(
        self,
        hidden_size: int,
        rank: int,
        vocab_size: int,
        draft_vocab_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            hidden_size, rank, vocab_size, draft_vocab_size, dtype=dtype, device=device
        )
        self.gate_proj = nn.Linear(hidden_size + rank, rank, dtype=dtype, device=device)

    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        weight, bias = self.gate_proj.weight, self.gate_proj.bias
        hidden = block.hidden_at(depth).to(weight.dtype)
        from_hidden = F.linear(hidden, weight[:, : self.hidden_size], bias)
        from_token = F.linear(state, weight[:, self.hidden_size :])
        gate = torch.sigmoid(from_token + from_hidden.unsqueeze(1))
        return add_correction(depth, block, gate * state, self.markov_w2.weight)


class RnnMarkovHead(MarkovHead):
    """(g, c, o) = W_j [s ; w(p) ; h] + b_j; logits = U + W2 tanh(o); s' = g s + (1 - g) tanh(c).

    g stands for its sigmoid. Scores read the *old* s: siblings share it, and a node's own step
    also needs the hidden state of its depth. The state is [s ; w(p)], S = 2 * rank.
    """

    def __init__(
        self,
        hidden_size: int,
        rank: int,
        vocab_size: int,
        draft_vocab_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            hidden_size, rank, vocab_size, draft_vocab_size, dtype=dtype, device=device
        )
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank, dtype=dtype, device=device)

    def root_state(self, block: DraftBlock) -> Tensor:
        embedded = self.markov_w1(block.anchors.unsqueeze(1))
        state = torch.cat([torch.zeros_like(embedded), embedded], dim=-1)
        # In the "1 + N" layout training also steps on the slot before depth 1, whose output it
        # drops: the recurrence does not start from zero there.
        for slot in range(block.slots[0]):
            carried = self._carry(block.hidden[:, slot], state)
            state = torch.cat([carried, embedded], dim=-1)
        return state

    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        output = self._project(block.hidden_at(depth), state, 2 * self.rank, 3 * self.rank)
        return add_correction(depth, block, torch.tanh(output), self.markov_w2.weight)

    def advance(self, depth: int, block: DraftBlock, state: Tensor, tokens: Tensor) -> Tensor:
        carried = self._carry(block.hidden_at(depth), state)
        return torch.cat([carried, self.markov_w1(tokens)], dim=-1)

    def _carry(self, hidden: Tensor, state: Tensor) -> Tensor:
        """The recurrent part after one step at ``hidden`` [R, H]: [R, P, rank]."""
        gate, content = self._project(hidden, state, 0, 2 * self.rank).chunk(2, dim=-1)
        return torch.lerp(torch.tanh(content), state[..., : self.rank], torch.sigmoid(gate))

    def _project(self, hidden: Tensor, state: Tensor, start: int, stop: int) -> Tensor:
        """Rows start..stop of W_j [s ; w(p) ; h] + b_j, [R, P, stop - start]."""
        weight, bias = self.joint_proj.weight[start:stop], self.joint_proj.bias[start:stop]
        from_hidden = F.linear(hidden.to(weight.dtype), weight[:, 2 * self.rank :], bias)
        return F.linear(state, weight[:, : 2 * self.rank]) + from_hidden.unsqueeze(1)


MARKOV_HEADS: dict[str, type[MarkovHead]] = {
    "vanilla": MarkovHead,
    "gated": GatedMarkovHead,
    "rnn": RnnMarkovHead,
}
