"""Measures tokens/s of transformers on the same card and shape as bench_cuda: its forward pass over prompts, generate(),
and its continuous batching. Each figure is printed as it comes. A failure is printed by name, and the other
measurements continue."""
import inspect
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, __version__

PROMPTS = (512, 2048, 8192)
BATCHES = (1, 8, 32, 128)
DEPTH, STEPS, VOCAB = 512, 64, 128256
PAGED = ("paged|sdpa", "sdpa_paged", "paged_attention", None)  # names of its paged attention, newest first


def model():
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=VOCAB, max_position_embeddings=16384)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval()


def timed(work):
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def shown(work):
    try:
        text = work()
    except Exception as e:  # a version's requirement or lack of memory: printed as the result
        text = f"{type(e).__name__}: {str(e).splitlines()[0][:80] if str(e) else ''}"
    print(f" {text} |", end="", flush=True)


def prefill(llama, ids, n):
    llama(ids[:1, :n], logits_to_keep=1)
    return f"{n / sorted(timed(lambda: llama(ids[:1, :n], logits_to_keep=1)) for _ in range(5))[2]:.0f}"


def generate(llama, ids, batch):
    def run(n):
        llama.generate(ids[:batch, :DEPTH], max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)
    run(8)
    short, long = timed(lambda: run(8)), timed(lambda: run(8 + STEPS))
    return f"{batch * STEPS / (long - short):.0f}"


def paged(llama):
    """Switches to its paged attention, under the name that this version has."""
    for name in PAGED:
        try:
            if name:
                llama.set_attn_implementation(name)
            return name or llama.config._attn_implementation
        except Exception:
            continue
    return None


def continuous(llama, batch):
    """Leaves out the warm-up of half a minute where it can be kept apart, and answers that did not come. Prompts are new
    each time, because transformers caches prompts."""
    first, *requests = torch.randint(0, VOCAB, (1 + batch, DEPTH)).tolist()
    config = llama.generation_config
    config.max_new_tokens, config.do_sample, config.eos_token_id, config.pad_token_id = STEPS, False, -1, 0
    takes = inspect.signature(llama.generate_batch).parameters
    words = {k: v for k, v in {"persistent_manager": True, "progress_bar": False}.items() if k in takes}
    answers = {}

    def run(some):
        answers.clear()
        answers.update(llama.generate_batch(inputs=some, generation_config=config, **words))
    run([first])
    seconds = timed(lambda: run(requests))
    n = sum(len(a.generated_tokens) for a in answers.values())
    if n != batch * STEPS:
        return f"{n} of {batch * STEPS} tokens"
    return f"{n / seconds:.0f}"


def main():
    llama = model()
    print(f"\ntransformers {__version__}, torch {torch.__version__}, bf16, {llama.config._attn_implementation} attention: tokens/s; "
          f"batches from depth {DEPTH}, continuous batching with its prefill\n")
    print("| | " + " | ".join(f"prefill {n}" for n in PROMPTS) + " | " + " | ".join(f"batch {n}" for n in BATCHES) + " |")
    print("| --- |" + " --- |" * (len(PROMPTS) + len(BATCHES)))
    ids = torch.randint(0, VOCAB, (max(BATCHES), max(PROMPTS)), device="cuda")
    with torch.inference_mode():
        print("| generate |", end="")
        for n in PROMPTS:
            shown(lambda n=n: prefill(llama, ids, n))
        for batch in BATCHES:
            shown(lambda batch=batch: generate(llama, ids, batch))
        print()
        if not hasattr(llama, "generate_batch"):
            print("\ncontinuous batching: this transformers has none")
            return
        print(f"| continuous batching ({paged(llama)}) |" + " |" * len(PROMPTS), end="")
        for batch in BATCHES:
            shown(lambda batch=batch: continuous(llama, batch))
        print("\n")


main()
