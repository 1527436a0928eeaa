"""The target's hidden states, read out of the engine while it writes the answers.

Computing them again for training would cost as much as half of the answers did.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from vllm import LLM

from vllm_dartree.engine.inspect import runner_of


class HiddenStates:
    """Collects, per request, what the captured layers and the final norm put out.

    Needs an in-process engine on stock vLLM's V1 runner, without prefix caching (a cached token is
    never computed) and without compilation (hooks are Python).
    """

    def __init__(self, llm: LLM, layer_ids: tuple[int, ...]) -> None:
        runner = runner_of(llm)
        decoder = runner.model.model
        self._outputs: list[Tensor] = [torch.empty(0)] * (len(layer_ids) + 1)
        self._rows: dict[str, list[Tensor]] = defaultdict(list)
        for place, layer_id in enumerate(layer_ids):
            self._keep(decoder.layers[layer_id], place, sum)
        self._keep(decoder.norm, len(layer_ids), lambda output: output[0])
        execute_model = runner.execute_model

        def execute_and_collect(scheduler_output: Any, *rest: Any) -> Any:
            result = execute_model(scheduler_output, *rest)
            self._collect(runner.input_batch.req_ids, scheduler_output.num_scheduled_tokens)
            return result

        runner.execute_model = execute_and_collect

    def _keep(self, module: nn.Module, place: int, hidden_of: Any) -> None:
        """Keep the module's (hidden, residual) output, reduced by hidden_of, as bf16 rows."""

        def hook(_module: nn.Module, _inputs: Any, output: tuple[Tensor, Tensor]) -> None:
            self._outputs[place] = hidden_of(output).to(torch.bfloat16)

        module.register_forward_hook(hook)

    def _collect(self, request_ids: list[str], num_tokens: dict[str, int]) -> None:
        start = 0
        step = torch.cat([output for output in self._outputs], -1) if num_tokens else None
        for request_id in request_ids:
            if request_id not in num_tokens:
                continue
            stop = start + num_tokens[request_id]
            # vLLM appends a random suffix to the id that the request was given.
            self._rows[request_id.rpartition("-")[0]].append(step[start:stop].clone())
            start = stop

    def take(self, request_id: str, num_tokens: int) -> Tensor:
        """[num_tokens, (M+1)*H] bf16: the M captured layers, then the final norm's output.

        The last token was sampled and never computed: its row is zero.

        Raises:
            ValueError: the engine computed another number of tokens for the request.
        """
        rows = torch.cat(self._rows.pop(request_id))
        if len(rows) != num_tokens - 1:
            raise ValueError(
                f"request {request_id}: {len(rows)} hidden states for {num_tokens} tokens. Was it "
                "preempted, or does the engine cache prefixes?"
            )
        return torch.cat([rows, torch.zeros_like(rows[:1])])
