#!/usr/bin/env python3
"""PyTorch on this card, at the shapes of an 8B Llama: products of bf16, fp8 and int8, and causal attention.

A line each, with the median of 20 runs timed by events. A missing kernel is a line with the reason."""
import statistics

import torch
import torch.nn.functional as F

ROWS, SHAPES = 2048, [(4096, 14336), (14336, 4096)]
REPEATS, WARM_UPS = 20, 3


def median_ms(call):
    for _ in range(WARM_UPS):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def line(name, operations, call):
    try:
        ms = median_ms(call)
        print(f"torch {name}: {ms * 1e3:.1f} us, {operations / ms * 1e-9:.0f} T/s", flush=True)
    except Exception as error:  # a missing kernel is a result
        print(f"torch {name}: not run ({str(error).splitlines()[0][:80]})", flush=True)


def products():
    for k, n in SHAPES:
        operations = 2 * ROWS * n * k
        x, w = torch.randn(ROWS, k, device="cuda"), torch.randn(n, k, device="cuda")
        x16, w16 = x.bfloat16(), w.bfloat16()
        line(f"bf16 {ROWS} x {k} x {n}", operations, lambda: x16 @ w16.t())
        x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t()
        row, column = torch.ones(ROWS, 1, device="cuda"), torch.ones(1, n, device="cuda")
        line(f"fp8 {ROWS} x {k} x {n}", operations,
             lambda: torch._scaled_mm(x8, w8, scale_a=row, scale_b=column, out_dtype=torch.bfloat16))
        xi, wi = (x * 30).to(torch.int8), (w * 30).to(torch.int8).t()
        line(f"int8 {ROWS} x {k} x {n}", operations, lambda: torch._int_mm(xi, wi))


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for n in (2048, 8192):
        q, k, v = (torch.randn(1, 32, n, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            with sdpa_kernel(backend):
                line(f"attention {name} {n}, causal, 32 heads", 4 * 32 * 128 * n * (n + 1) / 2,
                     lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


if __name__ == "__main__":
    print(f"torch {torch.__version__}", flush=True)
    products()
    attention()
