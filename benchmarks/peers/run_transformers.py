"""``transformers`` generate, padded by hand: batches in file order, as long as their longest prompt and output."""

from __future__ import annotations

from serve import Generate, Prompts, serve

BATCH_SIZE = 16


def load(model_folder: str) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16, local_files_only=True)

    def generate_batch(prompts: Prompts, num_new: int) -> int:
        longest = max(map(len, prompts))
        token_ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        written = model.generate(
            token_ids, attention_mask=mask, do_sample=False, min_new_tokens=num_new, max_new_tokens=num_new, pad_token_id=0
        )
        return written.shape[1] - longest

    def generate(prompts: Prompts, output_lens: list[int]) -> list[int]:
        num_outputs: list[int] = []
        for start in range(0, len(prompts), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            num_written = generate_batch(prompts[batch], max(output_lens[batch]))
            num_outputs += [min(num_written, wanted) for wanted in output_lens[batch]]  # what a row wrote past it is waste
        return num_outputs

    return generate


if __name__ == "__main__":
    serve(load)
