"""A request of every kind at once, for faults that each request must survive or report."""
import threading

import grpc

from conftest import patience, reason


class Failed(Exception):
    """An error frame of a GenerateStream, or a status."""

    def __init__(self, code, reason, text):
        super().__init__(f"{code} {reason} {text}")
        self.code, self.reason = code, reason


class Kinds:
    """Sends a request of every kind. `run` waits until each has ended. `given`: the answers, {(request, choice): (ids,
    text)}. `failed`: the status of each failed request. `stub`: uses its own connection."""

    def __init__(self, sluice, stub, n_tokens):
        self.sluice, self.stub, self.inference = sluice, stub, sluice.stubs.inference
        self.given, self.failed, self.begun, self.threads = {}, {}, {}, []
        stop = self.request(4, n_tokens, stop=["qwertz", "\N{SNOWMAN}"])
        logprobs, penalty = self.request(3, n_tokens), self.request(5, n_tokens)
        logprobs.output.logprobs, logprobs.output.top_n = True, 3
        penalty.sampling.repetition_penalty, penalty.sampling.frequency_penalty = 1.2, 0.3
        self.calls = {
            "Complete": lambda: self.complete(self.request(0, n_tokens)),
            "greedy": lambda: self.stream(self.request(1, n_tokens)),
            "seeded, two choices": lambda: self.stream(self.request(2, n_tokens, temperature=0.8, seed=7, n=2)),
            "log-probabilities": lambda: self.stream(logprobs),
            "stop strings": lambda: self.stream(stop),
            "penalties": lambda: self.stream(penalty),
            "GenerateStream": lambda: self.take("GenerateStream", self.stub.GenerateStream(iter([self.inference.GenerateStreamRequest(
                request_id=name, start=self.request(6 + i, n_tokens, temperature=0.7 * i, seed=i)) for i, name in enumerate("ab")]),
                timeout=patience(120))),
        }

    def request(self, i, n_tokens, **kwargs):
        return self.sluice.request("smol", f"Story {i}: once upon a time", max_tokens=n_tokens, ignore_eos=True, **kwargs)

    def complete(self, request):
        call = self.stub.Complete.future(request, timeout=patience(120))
        self.begun["Complete"].set()
        return {("", c.index): (list(c.ids), c.text) for c in call.result().choices}

    def stream(self, request):
        return self.take(threading.current_thread().name, self.stub.Generate(request, timeout=patience(120)))

    def take(self, kind, responses):
        given, ended = {}, set()
        self.given[kind] = given
        for r in responses:
            name = getattr(r, "request_id", "")
            if name and r.HasField("error"):
                raise Failed(next(c for c in grpc.StatusCode if c.value[0] == r.error.code), r.error.reason, r.error.message)
            if r.HasField("tokens"):
                ids, text = given.get((name, r.tokens.choice), ([], ""))
                assert r.tokens.first_index == len(ids) and (name, r.tokens.choice) not in ended, f"{kind}: a gap"
                given[name, r.tokens.choice] = ids + list(r.tokens.ids), text + r.tokens.text
                self.begun[kind].set()
            elif r.HasField("finished"):
                ended.add((name, r.finished.choice))
        assert ended == given.keys(), f"{kind}: cut short without an error"
        return given

    def one(self, kind):
        try:
            self.given[kind] = self.calls[kind]()
        except Failed as e:
            self.failed[kind] = e.code, e.reason
        except grpc.RpcError as e:
            self.failed[kind] = e.code(), reason(e)
        except AssertionError as e:
            self.failed[kind] = "NOT AS IT SHOULD", str(e)

    def start(self):
        """Waits until all run: each stream has tokens, and calls without tokens were sent before those streams."""
        self.begun = {kind: threading.Event() for kind in self.calls}
        self.threads = [threading.Thread(target=self.one, args=(kind,), name=kind) for kind in self.calls]
        for thread in self.threads:
            thread.start()
            assert self.begun[thread.name].wait(patience(60)), f"{thread.name}: nothing comes {self.failed}"
        return self

    def join(self):
        [t.join(patience(125)) for t in self.threads]
        return self

    def check_whole(self, reference):
        """Asserts that every request gave its undisturbed answer."""
        assert not self.failed and self.given == reference.given, (self.failed, [k for k in self.given if self.given[k] != reference.given[k]])

    def check_failed(self, reference, code, reason):
        """Asserts that each request got an error, and that its tokens are a prefix of the undisturbed answer."""
        assert self.failed == dict.fromkeys(self.calls, (code, reason)), self.failed
        for kind, given in self.given.items():
            for choice, (ids, text) in given.items():
                whole = reference.given[kind].get(choice, ([], ""))
                assert ids == whole[0][:len(ids)] or whole[0] == ids[:len(whole[0])], (kind, choice)
                assert text.startswith(whole[1]) or whole[1].startswith(text), (kind, choice)
