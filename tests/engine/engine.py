"""A handle on one engine inside its process: start it, generate, step it, look into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm import LLM, SamplingParams

from tests.engine import oracles
from tests.engine.prompts import MAX_MODEL_LEN, Prompt
from vllm_dartree.engine.inspect import runner_of

DEFAULTS = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": MAX_MODEL_LEN,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 32 << 20,
    "max_num_seqs": 8,
    "block_size": 32,
    "disable_log_stats": False,
}


@dataclass(frozen=True)
class Run:
    """What came out of `Engine.generate`: the requests' outputs, in the order of the prompts.

    drafted: nodes the oracle put into trees. rounds: steps that verified trees.
    """

    outputs: list[Any]
    drafted: int
    rounds: int

    @property
    def tokens(self) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.outputs]

    @property
    def finish_reasons(self) -> list[str]:
        return [output.outputs[0].finish_reason for output in self.outputs]


class Engine:
    """One engine; `oracle` replaces the drafter where there is one."""

    def __init__(self, llm: LLM, answers: dict[tuple[int, ...], list[int]], spec: Any) -> None:
        self.llm = llm
        self.answers = answers
        self.spec = spec
        self.oracle: oracles.Oracle | None = None

    @classmethod
    def start(cls, spec: dict[str, Any], checkpoints: dict[str, str], answers: list[Any]) -> Engine:
        """spec: an `EngineJob` as a dictionary; it keeps the drafter's directory as "model"."""
        if spec["trees"] is not None:
            spec["options"]["speculative_config"] = {
                "method": "dartree",
                "model": checkpoints[spec["drafter"]],
                **spec["trees"],
            }
        spec["directories"] = {key: checkpoints[spec[key]] for key in ("target", "drafter")}
        llm = LLM(model=checkpoints[spec["target"]], **{**DEFAULTS, **spec["options"]})
        known = {
            tuple(answer["prompt"]): answer["tokens"]
            for part in answers
            for answer in part["answers"]
            if part["target"] == spec["target"]
        }
        engine = cls(llm, known, spec)
        if spec["trees"] is not None and engine.in_process:
            engine.oracle = oracles.Oracle(engine.speculator, engine.runner.req_states)
            engine.oracle.answers = engine.answers
        return engine

    def stop(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    @property
    def in_process(self) -> bool:
        return hasattr(self.llm.llm_engine.engine_core, "engine_core")

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def runner(self) -> Any:
        return runner_of(self.llm)

    @property
    def speculator(self) -> Any:
        return self.runner.speculator

    @property
    def num_free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int | Sequence[int] = 64,
        shape: oracles.Shape | None = None,
        keep_prefixes: bool = False,
        params: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
    ) -> Run:
        """All prompts as one batch, greedily; prefix caching starts empty unless told otherwise."""
        if not keep_prefixes:
            assert self.llm.reset_prefix_cache()
        if self.oracle is not None and shape is not None:
            self.oracle.shape = shape
        num_drafted, num_rounds = self.counts()
        limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
        extra = [params or {}] * len(prompts) if not isinstance(params, Sequence) else params
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(p)} for p in prompts],
            [greedy(limit, **more) for limit, more in zip(limits, extra, strict=True)],
            use_tqdm=False,
        )
        drafted, rounds = self.counts()
        return Run(outputs, drafted - num_drafted, rounds - num_rounds)

    def counts(self) -> tuple[int, int]:
        """Nodes drafted and rounds verified so far."""
        if self.oracle is None:
            return 0, 0
        return self.oracle.num_drafted, self.speculator.clock.num_rounds

    def answer(self, prompt: Prompt, num_tokens: int) -> list[int]:
        """Stock vLLM's first tokens after `prompt`."""
        tokens = self.answers[tuple(prompt)]
        assert num_tokens <= len(tokens), f"only {len(tokens)} tokens are known"
        return tokens[:num_tokens]

    def known(self, prompt: Prompt) -> list[int]:
        """All that is known of the answer; nothing on stock engines, which ask no oracle."""
        return self.answers.get(tuple(prompt), [])

    def learn(self, prompt: Prompt, answer: list[int]) -> None:
        """Let the oracle know how the target goes on after `prompt`."""
        self.answers[tuple(prompt)] = answer

    def wrong(self, prompts: Sequence[Prompt], run: Run) -> list[dict[str, Any]]:
        """The requests whose tokens differ from stock vLLM's."""
        return [
            {"prompt_len": len(p), "got": got, "expected": self.answer(p, len(got))}
            for p, got in zip(prompts, run.tokens, strict=True)
            if got != self.answer(p, len(got))
        ]

    def add(self, name: str, prompt: Prompt, max_tokens: int = 64, **params: Any) -> None:
        """Queue a request; `steps` drives it."""
        priority = params.pop("priority", 0)
        self.llm.llm_engine.add_request(
            name,
            {"prompt_token_ids": list(prompt)},
            greedy(max_tokens, **params),
            priority=priority,
        )

    def steps(self) -> Iterator[dict[str, Any]]:
        """Step until all requests are done; yields what each step returned, by request name."""
        while self.llm.llm_engine.has_unfinished_requests():
            yield {output.request_id: output for output in self.llm.llm_engine.step()}

    def finish(self, each_step: Callable[[], None] = lambda: None) -> dict[str, list[int]]:
        """Step to the end; the tokens of every request that finished, by name."""
        tokens = {}
        for outputs in self.steps():
            each_step()
            for name, output in outputs.items():
                if output.finished:
                    tokens[name] = list(output.outputs[0].token_ids)
        return tokens

    def drain(self) -> None:
        """Drop whatever a failed scenario left running."""
        if self.in_process:
            self.llm.llm_engine.abort_request(self.names(self.scheduler.requests))
            for _ in self.steps():
                pass

    def names(self, request_ids: Iterable[str]) -> list[str]:
        """Sorted names under which requests were added; vLLM appends random characters."""
        return sorted(request_id.split("-")[0] for request_id in request_ids)

    @property
    def running(self) -> list[str]:
        return self.names(request.request_id for request in self.scheduler.running)

    def request_slot(self, name: str) -> tuple[str, int]:
        """vLLM's id of a request, and where Model Runner V2 keeps its state."""
        slots = self.runner.req_states.req_id_to_index
        return next(entry for entry in slots.items() if entry[0].split("-")[0] == name)


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    values = {"temperature": 0.0, "detokenize": False, "ignore_eos": True, **more}
    return SamplingParams(max_tokens=max_tokens, **values)
