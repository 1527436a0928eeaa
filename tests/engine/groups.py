"""The engines of the suite, by process."""

from __future__ import annotations

from tests.engine.harness import EngineJob, Group
from tests.engine.oracles import SHAPES

B16 = {"num_speculative_tokens": 16}
MATRIX = tuple(f"matrix.shape:{name}" for name in SHAPES)

GROUPS: dict[str, Group] = {
    "plain": Group(
        (
            EngineJob(
                "plain", ("plain.answers", "plain.runner_class"), options={"max_num_seqs": 64}
            ),
            EngineJob("plain_windowed", ("plain.answers",), target="windowed"),
        ),
        with_plugin=False,
    ),
    "matrix": Group(
        (
            EngineJob("block32", MATRIX, B16),
            EngineJob("block128", MATRIX, B16, {"block_size": 128}),
        )
    ),
}
