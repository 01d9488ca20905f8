"""The package in use. Modes: one answer, many answers on one stream, a lost stream with reattach, cancel, deadline, a refused
request.

usage: example.py TARGET MODEL generate|many|lost|cancel|deadline|bad PROMPT [N]
Variables, as for the CLI: SLUICE_TLS_CA, SLUICE_TLS_CLIENT_CERT, SLUICE_TLS_CLIENT_KEY, SLUICE_API_KEY.
SLUICE_EXAMPLE_IDS=1 prints token ids instead of text."""
import os
import sys

import sluice
from sluice import inference_pb2 as pb

CREDIT = 4


def generate(client, model, prompt, n, cancel_after=0, timeout=None):
    cut = bool(cancel_after or timeout)  # the answer must not end before it is cut
    request = pb.GenerateRequest(model=model, text=prompt, stopping=pb.Stopping(max_tokens=n, ignore_eos=cut))
    answer = client.generate(request, timeout=timeout)
    n_tokens = 0
    try:
        for response in answer:
            if response.WhichOneof("event") != "tokens":
                continue
            ids = os.environ.get("SLUICE_EXAMPLE_IDS")
            print("".join(f"{i} " for i in response.tokens.ids) if ids else response.tokens.text, end="", flush=True)
            n_tokens += len(response.tokens.ids)
            if cancel_after and n_tokens >= cancel_after:
                answer.cancel()
    finally:
        print()


def many(client, model, prompt, n):
    """Runs many requests on one stream. The first request gets CREDIT tokens at a time; while it waits for credit, an update
    raises max_tokens to 24. The last request is cancelled."""
    lines = {f"r{i}": [] for i in range(n)}
    running = set(lines)
    with client.stream() as stream:
        for i, name in enumerate(lines):
            last = 0 < i == n - 1
            stream.start(pb.GenerateRequest(model=model, request_id=name, text=f"{prompt} {i}",
                                            stopping=pb.Stopping(max_tokens=2 * CREDIT if i == 0 else 512 if last else 24),
                                            credit_tokens=CREDIT if i == 0 else None))
        for frame in stream:
            name, kind = frame.request_id, frame.WhichOneof("frame")
            if name not in running:
                continue  # credit sent after the end of a request gets NOT_FOUND
            if kind == "tokens":
                lines[name] += frame.tokens.ids
                if name == "r0":
                    stream.update(name, max_tokens=24)
                    stream.credit(name, len(frame.tokens.ids))
                elif name == f"r{n - 1}":
                    stream.cancel(name)
            elif kind == "finished" or kind == "error" and not frame.goes_on:
                outcome = "ok" if kind == "finished" else sluice.SluiceError.from_frame(frame.error).code.name
                print(name, outcome, *lines[name], flush=True)
                running.discard(name)
                if not running:
                    stream.finish()


def take(stream, ids, n_enough=None):
    """Appends token ids until the end, or until there are enough."""
    for frame in stream:
        kind = frame.WhichOneof("frame")
        if kind == "error":
            raise sluice.SluiceError.from_frame(frame.error)
        if kind == "tokens":
            ids += frame.tokens.ids
        if kind == "finished" or n_enough and len(ids) >= n_enough:
            return


def lost(client, model, prompt, n):
    """Closes the first stream after three tokens; the second stream gets the rest."""
    ids = []
    with client.stream() as stream:
        stream.start(pb.GenerateRequest(model=model, request_id="lost", text=prompt, stopping=pb.Stopping(max_tokens=n),
                                        reattach_window_ms=10000))
        take(stream, ids, n_enough=3)
    with client.stream() as stream:
        stream.reattach("lost", {0: len(ids)})
        take(stream, ids)
    print(*ids)


def bad(client, model, prompt, n):
    client.complete(pb.GenerateRequest(model=model, text=prompt, sampling=pb.Sampling(temperature=-1)))


MODES = {"generate": generate, "many": many, "lost": lost, "bad": bad,
         "cancel": lambda *a: generate(*a, cancel_after=3),
         "deadline": lambda c, m, p, ms: generate(c, m, p, 1500, timeout=ms / 1000)}


def main(target, model, mode, prompt, n="32"):
    if mode not in MODES:
        sys.exit(f"{mode}: no such mode; use one of {', '.join(MODES)}")
    if not n.isdecimal() or int(n) < 1:
        sys.exit("N: give a whole number from 1")
    n = int(n)
    get = os.environ.get
    with sluice.Client(target, tls_ca=get("SLUICE_TLS_CA"), tls_client_cert=get("SLUICE_TLS_CLIENT_CERT"),
                       tls_client_key=get("SLUICE_TLS_CLIENT_KEY"), api_key=get("SLUICE_API_KEY")) as client:
        try:
            MODES[mode](client, model, prompt, n)
        except sluice.SluiceError as error:
            print(" ".join(word for word in (error.code.name, error.field, error.reason) if word))
            print(error.message, file=sys.stderr)
            return error.code.value[0]
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
