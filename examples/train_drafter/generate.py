"""Step 1: answers of the target itself, the text the drafter learns to predict.

Writes ``train.jsonl`` and ``held_out.jsonl`` (one answer per line), and ``hidden_states.bin``, what
the target thought while it wrote the former. Running again continues where the files end; another
``--seed`` asks other questions for training and leaves the held-out ones alone. Held-out answers
are greedy; of the training answers every third is sampled at 0.7.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # in-process: both cores, 3 s to start
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import prompts as prompt_sets
import torch
from capture import HiddenStates
from data import fast_dtype
from demo_target import cache_root, ensure_target
from drafter import DrafterConfig
from prompts import HELD_OUT_SEED, Prompt, is_held_out
from torch import Tensor
from tqdm import tqdm
from vllm import LLM, SamplingParams

TASKS = {  # reasoning-gym task: number of training questions
    "gsm_symbolic": 2600,
    "leg_counting": 80,
    "basic_arithmetic": 60,
    "calendar_arithmetic": 60,
    "time_intervals": 60,
    "simple_equations": 60,
    "aiw": 60,
    "prime_factorization": 60,
    "family_relationships": 60,
    "fraction_simplification": 40,
}
# Of the kinds split by a hash: how many training prompts, how many held-out ones.
COUNTS = {"writing": (300, 8), "chat": (650, 16), "code": (300, 8), "self_written": (700, 12)}
EVALUATION_COUNT = 24  # of each kind that is never trained on
MAX_PROMPT_TOKENS = 448


def self_written(llm: LLM, count: int, seed: int, path: Path) -> list[Prompt]:
    """User turns that the target writes itself when it is given only the start of one.

    They are kept in path, so that a continued run sees the same texts.
    """
    if not path.exists():
        chat = [{"role": "user", "content": "\N{OBJECT REPLACEMENT CHARACTER}"}]
        template = llm.get_tokenizer().apply_chat_template(chat, tokenize=False)
        opening = template.split("\N{OBJECT REPLACEMENT CHARACTER}")[0]
        sampling = [
            SamplingParams(temperature=0.9, max_tokens=80, seed=seed + number)
            for number in range(count)
        ]
        outputs = llm.generate([opening] * count, sampling, use_tqdm=False)
        texts = [output.outputs[0].text.strip() for output in outputs]
        path.write_text(json.dumps(texts, indent=0))
    return [
        Prompt(f"self_written/{seed + number}", "self_written", text)
        for number, text in enumerate(json.loads(path.read_text())[:count])
        if text
    ]


def choose_prompts(llm: LLM, seed: int, out: Path) -> tuple[list[Prompt], list[Prompt]]:
    """Shuffled training prompts, and held-out prompts in a fixed order."""
    shuffler = random.Random(0)
    train: list[Prompt] = []
    held_out: list[Prompt] = []
    for task, count in TASKS.items():
        train += prompt_sets.reasoning_gym(task, count, seed=1 + 10_000 * seed)
        held_out += prompt_sets.reasoning_gym(task, max(2, count // 40), seed=HELD_OUT_SEED)
    pools = {
        "writing": prompt_sets.writing_bench(),
        "chat": prompt_sets.chat_templates(),
        "code": prompt_sets.code_templates(),
        "self_written": self_written(
            llm, sum(COUNTS["self_written"]) + 80, seed=1, path=out / "self_written.json"
        ),
    }
    for kind, pool in pools.items():
        shuffler.shuffle(pool)
        num_train, num_held_out = COUNTS[kind]
        train += [prompt for prompt in pool if not is_held_out(prompt)][:num_train]
        held_out += [prompt for prompt in pool if is_held_out(prompt)][:num_held_out]
    for loader in (prompt_sets.gsm8k, prompt_sets.human_eval, prompt_sets.mt_bench):
        pool = loader()
        held_out += pool[:: len(pool) // EVALUATION_COUNT][:EVALUATION_COUNT]
    # Small generators repeat themselves: the same question may come from two seeds.
    never = {prompt.text for prompt in held_out}
    train = [prompt for prompt in train if prompt.text not in never]
    assert not any(map(is_held_out, train)), "a held-out prompt in the training set"
    random.Random(seed).shuffle(train)
    return train, held_out


def append_bytes(path: Path, rows: Tensor) -> int:
    """Append the tensor's bytes to the file; returns where they begin."""
    with path.open("ab") as file:
        offset = file.tell()
        file.write(rows.view(torch.uint8).numpy().tobytes())
    return offset


def answer(
    llm: LLM, chosen: list[Prompt], path: Path, deadline: float, hidden_states: HiddenStates | None
) -> int:
    """Append the answers still missing from path as they finish; returns the new answer tokens.

    With hidden_states the answers are for training: a third is sampled, and the target's hidden
    states go beside them. Without, all are greedy.
    """
    greedy_only = hidden_states is None
    done = {json.loads(line)["id"] for line in path.open()} if path.exists() else set()
    tokenizer = llm.get_tokenizer()
    records = {}
    for number, prompt in enumerate(chosen):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}],
            add_generation_prompt=True,
            return_dict=False,
        )
        if prompt.id in done or len(ids) > MAX_PROMPT_TOKENS:
            continue
        temperature = 0.0 if greedy_only or number % 3 else 0.7
        # A few long answers teach the distances that long contexts need.
        max_tokens = 448 if number % 8 == 0 and not greedy_only else 224
        sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
        llm.llm_engine.add_request(prompt.id, {"prompt_token_ids": ids}, sampling)
        records[prompt.id] = {
            "id": prompt.id,
            "kind": prompt.kind,
            "temperature": temperature,
            "prompt_ids": ids,
        }
    num_tokens = 0
    states_path = path.with_name("hidden_states.bin")
    # Stepping the engine, not generate(): an interrupted run keeps every finished answer.
    with path.open("a") as file, tqdm(total=len(records), desc=path.name, mininterval=10) as bar:
        while llm.llm_engine.has_unfinished_requests() and time.time() < deadline:
            for output in llm.llm_engine.step():
                if not output.finished:
                    continue
                record = records[output.request_id]
                record["answer_ids"] = list(output.outputs[0].token_ids)
                num_tokens += len(record["answer_ids"])
                if hidden_states is not None:
                    # Before the record that points at them: an interruption leaves no lie.
                    length = len(record["prompt_ids"]) + len(record["answer_ids"])
                    rows = hidden_states.take(output.request_id, length)
                    record["states_offset"] = append_bytes(states_path, rows)
                file.write(json.dumps(record) + "\n")
                file.flush()
                bar.update()
    return num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=cache_root() / "train_drafter")
    parser.add_argument("--minutes", type=float, default=15.0, help="stop after about so long")
    parser.add_argument("--batch", type=int, default=192, help="requests that decode together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    llm = LLM(
        model=str(ensure_target()),
        dtype=fast_dtype(),
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=args.batch,
        kv_cache_memory_bytes=8 << 30,
        enable_prefix_caching=False,
        seed=args.seed,
    )
    train, held_out = choose_prompts(llm, args.seed, args.out)
    print(f"{len(train)} training prompts, {len(held_out)} held-out prompts")
    deadline = start + 60 * args.minutes
    answer(llm, held_out, args.out / "held_out.jsonl", deadline, None)
    hidden_states = HiddenStates(llm, DrafterConfig().target_layer_ids)
    before = time.time()
    num_tokens = answer(llm, train, args.out / "train.jsonl", deadline, hidden_states)
    print(f"{num_tokens} training tokens, {num_tokens / (time.time() - before):.0f} per second")


if __name__ == "__main__":
    main()
