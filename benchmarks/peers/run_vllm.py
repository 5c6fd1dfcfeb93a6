"""vLLM's CPU build with its default settings and prefix caching."""

from __future__ import annotations

from serve import Generate, Prompts, serve


def load(model_folder: str) -> Generate:
    from vllm import LLM, SamplingParams

    llm = LLM(model=model_folder, dtype="bfloat16", enable_prefix_caching=True)

    def generate(prompts: Prompts, output_lens: list[int]) -> list[int]:
        llm.reset_prefix_cache()
        sampling = [SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True) for num_tokens in output_lens]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return generate


if __name__ == "__main__":
    serve(load)
