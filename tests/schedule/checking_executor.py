"""An executor without a model that proves what the scheduler hands out.

Every slot of every page holds a digest of all the tokens up to and including its own, as KV does. Reading a page that does not
hold the sequence's own prefix is an error, and the token "sampled" is a function of the whole prefix alone, so outputs must not
depend on order, chunks, sharing or retraction.
"""

import numpy as np

from blendserve_core.schedule.step import Capacity, StepPlan, StepResult

EMPTY = 7919
VOCAB_SIZE = 50


def digest(previous: int, token: int) -> int:
    return (previous * 1_000_003 + token + 1) % (2**61 - 1)


class CheckingExecutor:
    def __init__(self, capacity: Capacity, eos_token_id: int = -1) -> None:
        self.capacity = capacity
        self.eos_token_id = eos_token_id
        self.pages = np.zeros((capacity.num_pages, capacity.page_size), dtype=np.int64)
        self.steps: list[StepPlan] = []

    def execute(self, step: StepPlan) -> StepResult:
        self.steps.append(step)
        self._check_bounds(step)
        self._copy_pages(step)
        prefixes = [self._append(step, i) for i in range(step.num_sequences)]
        for i in range(step.num_sequences):
            self._check_pages(step, i)
        sampled = [prefix % VOCAB_SIZE for prefix, wanted in zip(prefixes, step.is_sampled, strict=True) if wanted]
        return StepResult(token_ids=np.array(sampled, dtype=np.int32), seconds=1.0)

    def close(self) -> None:
        pass

    def _check_bounds(self, step: StepPlan) -> None:
        assert step.num_tokens <= self.capacity.max_step_tokens
        assert step.num_sequences <= self.capacity.max_sequences
        assert len(set(step.seq_ids.tolist())) == step.num_sequences
        is_decode = (np.diff(step.token_indptr) == 1) & (step.num_outputs > 0)
        assert (np.diff(is_decode.astype(int)) <= 0).all(), "decodes come first"

    def _copy_pages(self, step: StepPlan) -> None:
        assert not set(step.copy_src_pages.tolist()) & set(step.copy_dst_pages.tolist())
        for source, target, num_tokens in zip(step.copy_src_pages, step.copy_dst_pages, step.copy_lens, strict=True):
            self.pages[target, :num_tokens] = self.pages[source, :num_tokens]

    def _append(self, step: StepPlan, i: int) -> int:
        """Write the new tokens of sequence i, from the prefix that its pages hold. Returns the digest of all its tokens."""
        position = int(step.context_lens[i])
        prefix = self._slot(step, i, position - 1) if position else EMPTY
        for token in step.token_ids[step.token_indptr[i] : step.token_indptr[i + 1]]:
            prefix = digest(prefix, int(token))
            page, offset = self._where(step, i, position)
            self.pages[page, offset] = prefix
            position += 1
        assert step.last_page_lens[i] == (position - 1) % self.capacity.page_size + 1
        assert step.page_indptr[i + 1] - step.page_indptr[i] == -(-position // self.capacity.page_size)
        return prefix

    def _check_pages(self, step: StepPlan, i: int) -> None:
        """After every append, all positions still hold the chain of digests that ends in the last token."""
        num_tokens = int(step.context_lens[i] + step.token_indptr[i + 1] - step.token_indptr[i])
        self.check_chain([self._slot(step, i, position) for position in range(num_tokens)])

    @staticmethod
    def check_chain(digests: list[int]) -> None:
        previous = EMPTY
        for current in digests:
            token = (current - previous * 1_000_003 - 1) % (2**61 - 1)
            assert token < VOCAB_SIZE, "a page holds another prefix's tokens"
            previous = current

    def _where(self, step: StepPlan, i: int, position: int) -> tuple[int, int]:
        page_number, offset = divmod(position, self.capacity.page_size)
        return int(step.page_indices[step.page_indptr[i] + page_number]), offset

    def _slot(self, step: StepPlan, i: int, position: int) -> int:
        page, offset = self._where(step, i, position)
        return int(self.pages[page, offset])


def naive_output(prompt: list[int], max_tokens: int, eos_token_ids: tuple[int, ...] = ()) -> list[int]:
    """What one sequence gives on its own."""
    prefix = EMPTY
    for token in prompt:
        prefix = digest(prefix, token)
    outputs: list[int] = []
    while len(outputs) < max_tokens:
        outputs.append(prefix % VOCAB_SIZE)
        prefix = digest(prefix, outputs[-1])
        if outputs[-1] in eos_token_ids:
            break
    return outputs
