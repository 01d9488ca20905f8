"""tokens/s of transformers on the same card and shape as bench_cuda's: generate(), and its continuous batching where it has it."""
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, __version__


def model():
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=128256, max_position_embeddings=16384)
    torch.manual_seed(1)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        return LlamaForCausalLM(config).eval()


def timed(work):
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main():
    llama = model()
    print(f"\ntransformers {__version__}, torch {torch.__version__}, bf16, {llama.config._attn_implementation} attention: tokens/s\n")
    print("| | prefill 2048 | batch 1 | 8 | 32 |\n| --- | --- | --- | --- | --- |")
    ids = torch.randint(0, 128256, (32, 2048), device="cuda")
    with torch.inference_mode():
        llama(ids[:1])
        prefill = sorted(timed(lambda: llama(ids[:1])) for _ in range(5))[2]
        row = [f"{2048 / prefill:.0f}"]
        for batch in (1, 8, 32):
            def generate(n, batch=batch):
                llama.generate(ids[:batch, :512], max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)
            generate(8)
            short, long = timed(lambda: generate(8)), timed(lambda: generate(72))
            row.append(f"{batch * 64 / (long - short):.0f}")
        print("| generate | " + " | ".join(row) + " |")
        batched = getattr(llama, "generate_batch", None)
        if batched is None:
            print("\ncontinuous batching: this transformers has none")
            return
        requests = [ids[i, :512].tolist() for i in range(32)]
        try:
            seconds = timed(lambda: batched(inputs=requests, max_new_tokens=64))
            print(f"| continuous batching, 32 requests of 512 + 64 | | | | {32 * 64 / seconds:.0f} (prefill included) |")
        except Exception as e:  # whatever its version wants: told, not hidden
            print(f"\ncontinuous batching failed: {type(e).__name__}: {e}")


main()
