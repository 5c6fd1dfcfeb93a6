"""What every executor must do. Subclass it, give it a ``make_executor`` fixture, and it runs.

:class:`StepContract` is about steps, whatever the tokens are. For executors that run a real model :class:`ExecutorContract` has
one measure: transformers on the same weights, one sequence at a time, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hand_scheduler import HandScheduler
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.step import Capacity, Executor

MakeExecutor = Callable[[Path, RequestTable, Capacity], Executor]
Check = Callable[[HandScheduler], None]
CAPACITY = Capacity(num_pages=64, page_size=16, max_step_tokens=256, max_sequences=16, max_sequence_tokens=256)
PROMPT_LENS = (37, 5, 16, 61, 17, 1, 33, 40, 49, 35, 50)
VOCAB_SIZE = 97
# Sequences that begin with the same 32 tokens as sequence 3.
SIBLINGS = (6, 7, 8, 9, 10)
NUM_SHARED = 32
NUM_TOP = 8


@pytest.fixture(scope="session")
def float32_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contract") / "llama"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def reference(float32_model_folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(float32_model_folder, dtype=torch.float32)


def requests_of(**columns: Any) -> RequestTable:
    """The contract's prompts; sampling is greedy with logprobs where ``columns`` do not say otherwise."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB_SIZE, length).astype(np.int32) for length in PROMPT_LENS]
    for sequence in SIBLINGS:
        prompts[sequence][:NUM_SHARED] = prompts[3][:NUM_SHARED]
    lens = np.array(PROMPT_LENS, dtype=np.int32)
    defaults = {"max_tokens": 64, "rng_key": np.arange(len(lens)) + 11, "ignore_eos": True, "logprobs": NUM_TOP}
    return RequestTable(
        row=np.arange(len(lens)),
        sample_index=np.zeros(len(lens), dtype=np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=np.concatenate(prompts),
        sampling=SamplingColumns.greedy(len(lens), **(defaults | columns)),
    )


class StepContract:
    """Subclasses provide ``make_executor``, a function of model folder, requests and capacity, and ``check``."""

    @pytest.fixture
    def make_executor(self) -> MakeExecutor:
        raise NotImplementedError

    @pytest.fixture
    def requests(self) -> RequestTable:
        return requests_of()

    @pytest.fixture
    def executor(self, make_executor: MakeExecutor, float32_model_folder: Path, requests: RequestTable) -> Executor:
        return make_executor(float32_model_folder, requests, CAPACITY)

    @pytest.fixture
    def scheduler(self, requests: RequestTable) -> HandScheduler:
        return HandScheduler(requests, CAPACITY)

    @pytest.fixture
    def check(self) -> Check:
        """A function that compares what the running sequences have with what they should."""
        raise NotImplementedError

    def test_whole_prompts_then_decodes(self, executor, scheduler, check) -> None:
        scheduler.admit(*range(len(PROMPT_LENS)))
        scheduler.prefill_and_decode(executor, num_outputs=20)
        check(scheduler)

    @pytest.mark.parametrize("chunk", [1, 7, 16, 30])
    def test_a_prompt_in_chunks(self, executor, scheduler, check, chunk: int) -> None:
        scheduler.admit(3)
        for start in range(0, PROMPT_LENS[3], chunk):
            result = scheduler.step(executor, s3=min(chunk, PROMPT_LENS[3] - start))
        assert len(result.token_ids) == 1
        scheduler.prefill_and_decode(executor, num_outputs=5)
        check(scheduler)

    def test_a_step_that_samples_nothing_gives_no_tokens(self, executor, scheduler) -> None:
        scheduler.admit(0, 3)
        result = scheduler.step(executor, s0=10, s3=20)
        assert result.token_ids.shape == (0,)
        assert result.logprobs is None
        assert result.seconds > 0

    def test_decodes_chunks_and_whole_prompts_in_one_step(self, executor, scheduler, check) -> None:
        scheduler.admit(0, 1)
        scheduler.step(executor, s0=37, s1=5)
        scheduler.admit(2, 3, 4, 5)
        scheduler.step(executor, s0=1, s3=20, s2=16, s1=1, s5=1)
        scheduler.step(executor, s3=40, s5=1, s0=1, s4=17)
        scheduler.step(executor, s3=1, s4=1, s2=1)
        scheduler.prefill_and_decode(executor, num_outputs=4)
        check(scheduler)

    def test_pages_in_any_order(self, executor, requests, check) -> None:
        shuffled = np.random.default_rng(1).permutation(CAPACITY.num_pages)
        scheduler = HandScheduler(requests, CAPACITY, shuffled.tolist())
        scheduler.admit(*range(len(PROMPT_LENS)))
        scheduler.prefill_and_decode(executor, num_outputs=20)
        check(scheduler)

    @pytest.mark.parametrize("num_shared", [16, 32, 21, 7])
    def test_a_prefix_read_from_anothers_pages(self, executor, scheduler, check, num_shared: int) -> None:
        scheduler.admit(3)
        scheduler.step(executor, s3=40)
        scheduler.admit_behind(6, other=3, num_shared=num_shared)
        scheduler.step(executor, s3=21, s6=PROMPT_LENS[6] - num_shared)
        scheduler.prefill_and_decode(executor, num_outputs=6)
        check(scheduler)

    def test_a_prefix_read_by_many(self, executor, scheduler, check) -> None:
        scheduler.admit(0, 3)
        scheduler.step(executor, s0=37, s3=40)
        for sequence in SIBLINGS:
            scheduler.admit_behind(sequence, other=3, num_shared=NUM_SHARED)
        scheduler.step(executor, s0=1, s3=21, s6=1, s7=8, s8=10, s9=3, s10=18)
        scheduler.prefill_and_decode(executor, num_outputs=8)
        check(scheduler)

    def test_pages_used_before_by_a_finished_sequence(self, executor, scheduler, check) -> None:
        scheduler.admit(3)
        scheduler.prefill_and_decode(executor, num_outputs=3)
        scheduler.drop(3)
        scheduler.admit(0, 1)
        scheduler.prefill_and_decode(executor, num_outputs=3)
        check(scheduler)

    def test_a_retracted_sequence_is_recomputed_to_the_same_end(self, executor, scheduler, check) -> None:
        scheduler.admit(0, 2)
        scheduler.prefill_and_decode(executor, num_outputs=4)
        logprobs, outputs = scheduler.running[0].logprobs, scheduler.drop(0)
        scheduler.prefill_and_decode(executor, num_outputs=6)
        scheduler.admit(0)
        scheduler.running[0].tokens += outputs
        scheduler.running[0].logprobs = logprobs
        scheduler.step(executor, s0=39, s2=1)
        scheduler.prefill_and_decode(executor, num_outputs=8)
        check(scheduler)


class ExecutorContract(StepContract):
    """With a real model, tokens and log-probabilities are the reference's."""

    @pytest.fixture
    def check(self, reference: PreTrainedModel) -> Check:
        """Compare every running sequence's outputs and log-probabilities with the reference."""

        def check(scheduler: HandScheduler) -> None:
            for sequence, running in scheduler.running.items():
                num_outputs = len(scheduler.outputs(sequence))
                assert num_outputs > 0
                with torch.inference_mode():
                    logits = reference(torch.tensor(running.tokens[:-1])[None]).logits[0, -num_outputs:]
                assert scheduler.outputs(sequence) == logits.argmax(-1).tolist()
                for log_probs, found in zip(logits.log_softmax(-1), running.logprobs, strict=True):
                    # Two that are nearly equal may change places, so each is compared with its own and with its rank's.
                    values = list(found.values())
                    np.testing.assert_allclose(values, log_probs[list(found)], atol=2e-4)
                    np.testing.assert_allclose(values, log_probs.topk(NUM_TOP).values, atol=2e-4)

        return check

    @pytest.mark.parametrize(
        "columns",
        [
            {"temperature": 0.8},
            {"temperature": 1.0, "top_k": 7},
            {"temperature": 1.0, "top_p": 0.8, "min_p": 0.02},
            {"repetition_penalty": 1.4},
            {"temperature": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.4},
        ],
        ids=str,
    )
    def test_sampled_tokens_depend_on_neither_batch_nor_retraction(
        self, make_executor, float32_model_folder, columns: dict[str, float]
    ) -> None:
        requests = requests_of(**columns)
        together = HandScheduler(requests, CAPACITY)
        together.admit(*range(len(PROMPT_LENS)))
        together.prefill_and_decode(make_executor(float32_model_folder, requests, CAPACITY), num_outputs=12)
        executor = make_executor(float32_model_folder, requests, CAPACITY)
        for sequence in range(len(PROMPT_LENS)):
            alone = HandScheduler(requests, CAPACITY)
            alone.admit(sequence)
            alone.prefill_and_decode(executor, num_outputs=5)
            outputs = alone.drop(sequence)
            alone.admit(sequence)
            alone.running[sequence].tokens += outputs
            alone.prefill_and_decode(executor, num_outputs=12)
            assert alone.outputs(sequence) == together.outputs(sequence)

    def test_penalties_change_the_greedy_choice_as_documented(self, make_executor, float32_model_folder, reference) -> None:
        penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}
        requests = requests_of(**penalties)
        scheduler = HandScheduler(requests, CAPACITY)
        scheduler.admit(0, 1)
        scheduler.prefill_and_decode(make_executor(float32_model_folder, requests, CAPACITY), num_outputs=15)
        for sequence in (0, 1):
            prompt = requests.prompt(sequence).tolist()
            expected = _penalised_greedy(reference, prompt, 15, **penalties)
            assert scheduler.outputs(sequence) == expected


@torch.inference_mode()
def _penalised_greedy(
    model: PreTrainedModel,
    prompt: list[int],
    num_outputs: int,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
) -> list[int]:
    outputs: list[int] = []
    for _ in range(num_outputs):
        logits = model(torch.tensor(prompt + outputs)[None]).logits[0, -1].tolist()
        for token in set(prompt + outputs):
            logits[token] *= repetition_penalty if logits[token] < 0 else 1 / repetition_penalty
        for token in set(outputs):
            logits[token] -= presence_penalty + frequency_penalty * outputs.count(token)
        outputs.append(int(np.argmax(logits)))
    return outputs
