"""Answers of the target, its hidden states at them, and batches of both."""

from __future__ import annotations

import hashlib
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
    """A chat prompt and the target's answer to it, as token ids."""

    id: str
    kind: str
    prompt_ids: list[int]
    answer_ids: list[int]

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + self.answer_ids


@dataclass(frozen=True)
class Batch:
    """token_ids [R, S] right-padded with 0, features [R, S, M*H] bf16, and each row's extent."""

    token_ids: Tensor
    features: Tensor
    prompt_lengths: list[int]
    lengths: list[int]


def load_answers(path: Path, min_answer_tokens: int = 16) -> list[Answer]:
    """Answers that are long enough to draft in."""
    rows = [json.loads(line) for line in path.open()]
    answers = [Answer(r["id"], r["kind"], r["prompt_ids"], r["answer_ids"]) for r in rows]
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
        self.model = AutoModel.from_pretrained(directory, dtype=torch.bfloat16).eval()
        self.layer_ids = layer_ids
        self.embedding = self.model.get_input_embeddings().weight.detach()

    @torch.inference_mode()
    def features(self, token_ids: Tensor) -> Tensor:
        """[R, S, M*H] bf16: the residual stream after each captured layer, concatenated."""
        outputs = self.model(token_ids, output_hidden_states=True, use_cache=False)
        # Entry 0 is the embedding, so entry l + 1 follows layer l.
        states = [outputs.hidden_states[layer_id + 1] for layer_id in self.layer_ids]
        return torch.cat(states, -1)


class FeatureStore:
    """Hidden states of all answers, computed at first use and kept in a file-backed tensor."""

    def __init__(self, target: Target, answers: list[Answer], directory: Path) -> None:
        self.target, self.answers = target, answers
        self.lengths = [len(answer.token_ids) for answer in answers]
        self.starts = [0]
        for length in self.lengths:
            self.starts.append(self.starts[-1] + length)
        width = len(target.layer_ids) * target.embedding.shape[1]
        # In a file, so that the system may drop pages when memory is short, and so that a continued
        # run finds them again. Answer files only grow, so the first answer identifies the file.
        key = repr((target.layer_ids, answers[0].token_ids)).encode()
        path = directory / f"features-{hashlib.sha256(key).hexdigest()[:12]}.bin"
        flat = torch.from_file(
            str(path), shared=True, size=self.starts[-1] * width, dtype=torch.bfloat16
        )
        self.rows = flat.view(-1, width)
        # Rows that were never written are zero.
        self.ready = [bool(self.rows[stop - 1].any()) for stop in self.starts[1:]]

    def batch(self, members: list[int]) -> Batch:
        """The batch of the answers with these numbers."""
        token_ids = pad([self.answers[member].token_ids for member in members])
        spans = [slice(self.starts[member], self.starts[member + 1]) for member in members]
        if not all(self.ready[member] for member in members):
            features = self.target.features(token_ids)
            for row, (member, span) in enumerate(zip(members, spans, strict=True)):
                self.rows[span] = features[row, : self.lengths[member]]
                self.ready[member] = True
        features = torch.zeros(*token_ids.shape, self.rows.shape[1], dtype=torch.bfloat16)
        for row, span in enumerate(spans):
            features[row, : span.stop - span.start] = self.rows[span]
        return Batch(
            token_ids,
            features,
            [len(self.answers[member].prompt_ids) for member in members],
            [self.lengths[member] for member in members],
        )

    def feature_scale(self, num_answers: int = 16) -> Tensor:
        """[M*H] float32: the usual size of each feature, from the first answers.

        A median, because a few tokens (the first above all) have values a thousand times as large.
        """
        self.batch(list(range(min(num_answers, len(self.answers)))))
        rows = self.rows[: self.starts[min(num_answers, len(self.answers))]]
        return rows.float().abs().median(0).values.clamp(min=1e-3) * 1.48

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
