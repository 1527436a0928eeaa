"""The OpenAI-compatible server with the demo pair, as a user starts and uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.demo.demo_runs import DRAFTER, demo_target
from tests.server_process import Server

MODEL = "smollm2"
QUESTIONS = (
    "If Ann is 9 years old and her brother is twice her age, how old is her brother?",
    "Write a Python function that reverses a string.",
    "What is the central dogma of molecular biology?",
    "Name three colours of the rainbow.",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    speculative_config = {"method": "dartree", "model": str(DRAFTER), "num_speculative_tokens": 8}
    arguments = [
        str(demo_target()),
        *("--served-model-name", MODEL),
        *("--dtype", "float32"),  # answers are compared token for token
        *("--max-model-len", "1024", "--max-num-seqs", "4"),
        *("--kv-cache-memory-bytes", str(1 << 29), "--enforce-eager"),
        *("--shutdown-timeout", "60"),  # vLLM's default of 0 kills its processes
        *("--override-generation-config", '{"temperature": 0}'),
        *("--speculative-config", json.dumps(speculative_config)),
    ]
    server = Server(arguments, tmp_path_factory.mktemp("serve") / "server.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=300, max_retries=0)


def _ask(server: Server, question: str, **options: float) -> str:
    answer = _client(server).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=32,
        **({"temperature": 0.0} | options),
    )
    return answer.choices[0].message.content or ""


def test_a_streamed_answer_is_the_answer_in_pieces(server: Server) -> None:
    whole = _ask(server, QUESTIONS[0])
    stream = _client(server).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        temperature=0.0,
        max_tokens=32,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(whole) > 20
    assert "".join(pieces) == whole
    assert len([piece for piece in pieces if piece]) > 1


def test_requests_at_once_get_the_answers_they_get_alone(server: Server) -> None:
    alone = [_ask(server, question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: _ask(server, question), QUESTIONS))
    assert together == alone
    assert len(set(alone)) == len(QUESTIONS)


def test_a_temperature_is_refused_by_name_and_the_server_goes_on(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        _ask(server, QUESTIONS[0], temperature=0.7)
    assert refusal.value.status_code == 400
    assert "temperature=0.7" in str(refusal.value)
    assert "'dartree'" in str(refusal.value)
    assert _ask(server, QUESTIONS[0])


def test_a_client_that_names_no_temperature_gets_the_greedy_answer(server: Server) -> None:
    answer = _client(server).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTIONS[3]}], max_tokens=32
    )
    assert answer.choices[0].message.content == _ask(server, QUESTIONS[3])


def test_vllm_s_metrics_count_accepted_drafts(server: Server) -> None:
    before = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    _ask(server, QUESTIONS[1])
    assert server.metric("vllm:spec_decode_num_drafts_total") > 0
    assert server.metric("vllm:spec_decode_num_draft_tokens_total") > 0
    assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > before


def test_the_log_says_once_what_is_active(server: Server) -> None:
    lines = [line for line in server.log.read_text().splitlines() if "DARTree is active" in line]
    assert len(lines) == 1
    assert "domino" in lines[0] and "pruned" in lines[0] and "B=8" in lines[0]


def test_sigterm_ends_all_processes_and_a_restart_answers_the_same(server: Server) -> None:
    before = _ask(server, QUESTIONS[2])
    assert len(server.processes()) > 1, "the engine core is a process of its own"

    assert server.stop() == 0, server.log_tail()
    assert "force killing" not in server.log.read_text(), server.log_tail()
    assert not server.healthy()

    server.start()
    assert _ask(server, QUESTIONS[2]) == before
