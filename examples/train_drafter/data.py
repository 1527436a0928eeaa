"""Answers of the target, its hidden states at them, and batches of both."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel


@dataclass(frozen=True)
class Answer:
    """A chat prompt and the target's answer to it, as token ids.

    states_offset: where in the file of hidden states those of this answer begin, in bytes.
    """

    id: str
    kind: str
    prompt_ids: list[int]
    answer_ids: list[int]
    states_offset: int | None = None

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + self.answer_ids


@dataclass(frozen=True)
class Batch:
    """token_ids [R, S] right-padded with 0, hidden states, and each row's extent.

    features [R, S, M*H]: of the captured layers; final [R, S, H]: what the target's LM head sees.
    """

    token_ids: Tensor
    features: Tensor
    final: Tensor
    prompt_lengths: list[int]
    lengths: list[int]


def fast_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it natively; elsewhere float32 is ten times as fast."""
    capabilities = torch.cpu.get_capabilities()
    native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return torch.bfloat16 if native else torch.float32


def load_answers(path: Path, min_answer_tokens: int = 16) -> list[Answer]:
    """Answers that are long enough to draft in."""
    rows = [json.loads(line) for line in path.open()]
    fields = ("id", "kind", "prompt_ids", "answer_ids", "states_offset")
    answers = [Answer(*(row.get(field) for field in fields)) for row in rows]
    return [answer for answer in answers if len(answer.answer_ids) >= min_answer_tokens]


def frequent_ids(answers: list[Answer], count: int) -> tuple[Tensor, float]:
    """The ids that answers use most, ascending [<= count], and the share of tokens they cover."""
    uses = Counter(token for answer in answers for token in answer.answer_ids)
    kept = uses.most_common(count)
    covered = sum(number for _, number in kept) / max(1, uses.total())
    return torch.tensor(sorted(token for token, _ in kept)), covered


def pad(sequences: list[list[int]]) -> Tensor:
    """[R, S] int64, right-padded with 0."""
    width = max(map(len, sequences))
    return torch.tensor([sequence + [0] * (width - len(sequence)) for sequence in sequences])


class Target:
    """The frozen target: its token embedding (tied to its LM head) and its hidden states."""

    def __init__(self, directory: Path, layer_ids: tuple[int, ...]) -> None:
        # The base model: the features never need the LM head's logits.
        self.model = AutoModel.from_pretrained(directory, dtype=fast_dtype()).eval()
        self.layer_ids = layer_ids
        self.embedding = self.model.get_input_embeddings().weight.detach()

    @torch.inference_mode()
    def features(self, token_ids: Tensor) -> Tensor:
        """[R, S, M*H]: the residual stream after each captured layer, concatenated."""
        outputs = self.model(token_ids, output_hidden_states=True, use_cache=False)
        # Entry 0 is the embedding, so entry l + 1 follows layer l.
        states = [outputs.hidden_states[layer_id + 1] for layer_id in self.layer_ids]
        return torch.cat(states, -1)


class TrainingSet:
    """Answers for training with the hidden states that the engine had while it wrote them."""

    def __init__(self, path: Path, num_layers: int, hidden_size: int) -> None:
        self.answers = load_answers(path)
        self.lengths = [len(answer.token_ids) for answer in self.answers]
        self._widths = [num_layers * hidden_size, hidden_size]
        states_path = path.with_name("hidden_states.bin")
        # Mapped, not read: the system may drop pages when memory is short.
        self._states = torch.from_file(
            str(states_path), size=states_path.stat().st_size // 2, dtype=torch.bfloat16
        )

    def _rows(self, member: int) -> Tensor:
        """[S, (M+1)*H] of one answer."""
        offset = self.answers[member].states_offset
        if offset is None:
            raise ValueError(
                f"answer {self.answers[member].id} has no hidden states: generate.py writes them"
            )
        width = sum(self._widths)
        return self._states[offset // 2 :][: self.lengths[member] * width].view(-1, width)

    def batch(self, members: list[int]) -> Batch:
        """The batch of the answers with these numbers."""
        answers = [self.answers[member] for member in members]
        token_ids = pad([answer.token_ids for answer in answers])
        states = torch.zeros(*token_ids.shape, sum(self._widths), dtype=fast_dtype())
        for row, member in enumerate(members):
            states[row, : self.lengths[member]] = self._rows(member)
        features, final = states.split(self._widths, -1)
        return Batch(
            token_ids,
            features,
            final,
            [len(answer.prompt_ids) for answer in answers],
            [self.lengths[member] for member in members],
        )

    def feature_scale(self, num_answers: int = 16) -> Tensor:
        """[M*H] float32: the usual size of each feature, from the first answers.

        A median, because a few tokens (the first above all) have values a thousand times as large.
        """
        rows = [self._rows(member) for member in range(min(num_answers, len(self.answers)))]
        features = torch.cat(rows)[:, : self._widths[0]]
        return features.float().abs().median(0).values.clamp(min=1e-3) * 1.48

    def epoch(self, batch_size: int, shuffler: random.Random) -> Iterator[list[int]]:
        """Every answer once, in shuffled batches of similar length."""
        order = list(range(len(self.answers)))
        shuffler.shuffle(order)
        # Sorting inside large groups keeps padding small and still mixes the batches.
        group = 32 * batch_size
        batches = []
        for first in range(0, len(order), group):
            members = sorted(order[first : first + group], key=self.lengths.__getitem__)
            batches += [members[i : i + batch_size] for i in range(0, len(members), batch_size)]
        shuffler.shuffle(batches)
        yield from batches
