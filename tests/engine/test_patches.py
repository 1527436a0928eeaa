"""The ledger of patches: loud where it does not fit, silent where nobody asks for dartree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.checkpoints import write_all
from tests.engine.harness import Reports
from tests.engine.tiny_args import tiny_engine_args
from tests.engine_process import run_engine

PATCHED = [
    "vllm.engine.arg_utils:EngineArgs.create_speculative_config",
    "vllm.config.vllm:VllmConfig.use_v2_model_runner",
    "vllm.config.vllm:VllmConfig._validate_v2_model_runner",
    "vllm.config.vllm:VllmConfig.num_lookahead_tokens",
    "vllm.config.speculative:SpeculativeConfig.max_num_new_slots_for_drafting",
    "vllm.platforms.cpu:CpuPlatform.register_triton_kernel_overrides",
    "vllm.triton_utils:triton.next_power_of_2",
    "vllm.triton_utils.dispatcher:vars",
    "vllm.v1.worker.gpu.model_runner:init_speculator",
    "vllm.sampling_params:SamplingParams._validate_spec_decode",
]


@pytest.mark.parametrize("process", ["front", "core", "worker"])
def test_B35_every_process_has_all_patches(reports: Reports, process: str) -> None:
    report = reports("processes", "processes.patches")[process]
    assert report["missing"] == []
    assert set(PATCHED) <= set(report["applied"])
    assert (report["native_kernels"] > 0) == (process == "worker")  # where kernels are launched


def test_B35_core_and_worker_are_processes_of_their_own(reports: Reports) -> None:
    report = reports("processes", "processes.patches")
    assert len({report[process]["pid"] for process in ("front", "core", "worker")}) == 3
    assert report["worker"]["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"


def create_config(target: str, drafter: str, method: str | None) -> Any:
    speculative = None
    if method is not None:
        speculative = {"method": method, "model": drafter, "num_speculative_tokens": 4}
        if method == "ngram":
            speculative = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    return tiny_engine_args(target, speculative_config=speculative).create_engine_config()


def outcome(target: str, drafter: str, method: str | None) -> str:
    try:
        config = create_config(target, drafter, method)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"V2: {config.use_v2_model_runner}"


def registered_twice(target: str, drafter: str) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    from vllm_dartree import register
    from vllm_dartree.engine.activation import activate, all_patches

    register()
    once = EngineArgs.create_speculative_config
    register()
    twice = EngineArgs.create_speculative_config
    before = [patch.target for patch in all_patches() if patch.applied]
    activate()
    replaced = [_current(patch) for patch in all_patches()]
    activate()
    return {
        "register again changes nothing": once is twice,
        "activate again changes nothing": replaced == [_current(p) for p in all_patches()],
        "applied by register": before,
        "wrapped once": not hasattr(once.__wrapped__, "__wrapped__"),
        "dartree": outcome(target, drafter, "dartree"),
    }


def _current(patch: Any) -> str:
    import inspect

    holder, name = patch.resolve()
    return str(id(inspect.getattr_static(holder, name)))


def on_another_vllm(target: str, drafter: str) -> dict[str, str]:
    from vllm_dartree import register
    from vllm_dartree.patches import ledger

    ledger.SUPPORTED_VLLM = "0.99.0"
    register()
    register()
    methods = (None, "ngram", "dartree")
    return {str(method): outcome(target, drafter, method) for method in methods}


def with_changed_targets(target: str, drafter: str, names: list[str]) -> dict[str, Any]:
    """Another plugin got to one of the patched names first; the entry point's own comes last."""
    import inspect

    from vllm_dartree import register
    from vllm_dartree.engine.activation import all_patches, deactivate

    said = {}
    for name in names:
        patch = next(p for p in all_patches() if p.target == name)
        holder, attribute = patch.resolve()
        original = inspect.getattr_static(holder, attribute)
        function = original.fget if isinstance(original, property) else original

        def replaced(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        setattr(holder, attribute, property(replaced) if function is not original else replaced)
        register()
        said[name] = {str(m): outcome(target, drafter, m) for m in (None, "dartree")}
        said[name]["applied"] = [p.target for p in all_patches() if p.applied]
        setattr(holder, attribute, original)
        deactivate()
    return said


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directories = write_all(Path(tmp_path_factory.mktemp("pair")), {"full", "tiny"})
    return {"target": directories["full"], "drafter": directories["tiny"]}


def test_B35_registering_and_activating_twice_changes_nothing(pair: dict[str, str]) -> None:
    report = run_engine(registered_twice, **pair)
    assert report.pop("applied by register") == PATCHED[:1]
    assert report.pop("dartree") == "V2: True"
    assert all(report.values()), report


def test_B35_another_vllm_refuses_dartree_and_serves_the_rest(pair: dict[str, str]) -> None:
    said = run_engine(on_another_vllm, **pair)
    assert said["None"] == "V2: False"
    assert said["ngram"] == "V2: False"
    assert "ValueError" in said["dartree"]
    assert "0.99.0" in said["dartree"] and "found 0.32.0" in said["dartree"]
    assert "install vllm==0.99.0" in said["dartree"]


def test_B35_a_changed_target_refuses_dartree_and_patches_nothing(pair: dict[str, str]) -> None:
    names = [PATCHED[3], PATCHED[5], PATCHED[8], PATCHED[0]]
    for name, said in run_engine(with_changed_targets, **pair, names=names).items():
        assert said["None"] == "V2: False"
        assert f"{name} has fingerprint" in said["dartree"], said["dartree"]
        assert said["applied"] == ([] if name == PATCHED[0] else PATCHED[:1])
