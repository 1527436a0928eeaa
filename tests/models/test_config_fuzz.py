"""Whatever happened to config.json, the user gets a spec or a ValueError, nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.dialects import DIALECTS
from vllm_dartree.models import DrafterSpec
from vllm_dartree.models.checkpoint import describe
from vllm_dartree.models.tensors import TensorHeader, check_tensors, read_tensor_headers

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([10**30, -1, 0, 1.5, 1e308, float("nan"), float("inf"), "", "x", "vanilla"]),
    st.sampled_from([[], [None], [1, "a"], [3, 1], {}, {"rope_type": 3}, {"a": {"b": 1}}, [[1]]]),
)
CHECKPOINTS: dict[str, tuple[dict[str, Any], dict[str, TensorHeader]]] = {}


@pytest.fixture(scope="module", autouse=True)
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, write in DIALECTS.items():
        folder: Path = write(tmp_path_factory.mktemp(name))
        config = json.loads((folder / "config.json").read_text())
        CHECKPOINTS[name] = config, read_tensor_headers(folder)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), dialect=st.sampled_from(sorted(DIALECTS)))
def test_broken_config_gives_a_value_error(data: st.DataObject, dialect: str) -> None:
    original, headers = CHECKPOINTS[dialect]
    config = copy.deepcopy(original)
    sections = [config, *(v for v in config.values() if isinstance(v, dict))]
    for _ in range(data.draw(st.integers(1, 3))):
        section = data.draw(st.sampled_from(sections))
        if not section:
            continue
        key = data.draw(st.sampled_from(sorted(section)))
        if data.draw(st.booleans()):
            del section[key]
        else:
            section[key] = data.draw(JUNK)
    try:
        spec = describe(config, headers)
        check_tensors(spec, headers)
    except ValueError as error:
        assert len(str(error)) > 20
    else:
        assert isinstance(spec, DrafterSpec)
        assert DrafterSpec.from_json(json.loads(json.dumps(spec.to_json()))).slots == spec.slots


@settings(max_examples=150, deadline=None)
@given(data=st.data(), dialect=st.sampled_from(sorted(DIALECTS)))
def test_changed_tensor_gives_a_value_error(data: st.DataObject, dialect: str) -> None:
    """Any needed tensor that is lost, reshaped or stored in another dtype is noticed."""
    config, original = CHECKPOINTS[dialect]
    unused = ("t2d", "confidence_head.proj.weight", "confidence_head.proj.bias")
    name = data.draw(st.sampled_from(sorted(set(original) - set(unused))))
    headers = dict(original)
    header = headers.pop(name)
    shape = data.draw(st.lists(st.integers(0, 70), max_size=3).map(tuple))
    change = data.draw(st.sampled_from(["lose", "shape", "dtype"]))
    if change == "shape" and shape != header.shape:
        headers[name] = TensorHeader(name, shape, header.dtype)
    elif change == "dtype":
        headers[name] = TensorHeader(name, header.shape, "F8_E4M3")
    optional = ("embed_tokens.weight", "lm_head.weight")
    if name not in headers and name in optional and "d2t" not in headers:
        return  # the target's is shared then
    with pytest.raises(ValueError):
        check_tensors(describe(config, headers), headers)
