"""A client of GenerateStream that checks each message on arrival, and the references for its answers."""
import queue
import threading

import grpc

from conftest import patience

PROMPTS = ["Once upon a time", "The capital of France is", "def fib(n):", "Die Katze sitzt", "1, 2, 3,", "Dear Sir,",
           "Water boils at", "Emoji: \U0001f600\U0001f680", "List of colours:\n-", "In the beginning"]


class Answer:
    def __init__(self):
        self.info = None
        self.ids, self.text, self.finished, self.errors, self.messages = {}, {}, {}, [], 0

    def tokens(self):
        return sum(len(i) for i in self.ids.values())


class Stream:
    """A GenerateStream call. Each message is checked on arrival: no gap, no duplicate, nothing after the end."""

    def __init__(self, served, channel=None, **kwargs):
        self.inference = served.stubs.inference
        stub = served.stubs.inference_grpc.InferenceStub(channel) if channel else served.inference
        self.out, self.answers, self.order = queue.Queue(), {}, []
        self.changed, self.over, self.status, self.complaint = threading.Condition(), False, None, None
        self.call = stub.GenerateStream(iter(self.out.get, None), **kwargs)
        threading.Thread(target=self.read, daemon=True).start()

    def send(self, request_id="", **frame):
        self.out.put(self.inference.GenerateStreamRequest(request_id=request_id, **frame))

    def start(self, request_id, request):
        self.send(request_id, start=request)

    def cancel(self, request_id):
        self.send(request_id, cancel=self.inference.CancelFrame())

    def pause(self, request_id):
        self.send(request_id, pause=self.inference.PauseFrame())

    def resume(self, request_id):
        self.send(request_id, resume=self.inference.ResumeFrame())

    def credit(self, request_id, n):
        self.send(request_id, credit=self.inference.CreditFrame(n_tokens=n))

    def update(self, request_id, **change):
        self.send(request_id, update=self.inference.UpdateFrame(**change))

    def reattach(self, request_id, received):
        """Sends a reattach frame. `received`: the client's tokens per choice, an Answer or a dict of counts."""
        if isinstance(received, Answer):
            self.answers[request_id] = received
            received = {c: len(ids) for c, ids in received.ids.items()}
        counts = [self.inference.ReceivedTokens(choice=c, n_tokens=n) for c, n in received.items()]
        self.send(request_id, reattach=self.inference.ReattachFrame(received=counts))

    def half_close(self):
        self.out.put(None)

    def take(self, response):
        answer = self.answers.setdefault(response.request_id, Answer())
        kind = response.WhichOneof("frame")
        answer.messages += 1
        if kind == "error":
            answer.errors.append(response)
            return
        if [e for e in answer.errors if not e.goes_on]:
            self.complaint = f"{response.request_id}: {kind} after its end"
        if kind == "prompt_info":
            answer.info = response.prompt_info
        elif kind == "tokens":
            t = response.tokens
            ids = answer.ids.setdefault(t.choice, [])
            if t.first_index != len(ids) or t.choice in answer.finished:
                self.complaint = f"{response.request_id}/{t.choice}: token {t.first_index} after {len(ids)}"
            ids += t.ids
            answer.text[t.choice] = answer.text.get(t.choice, "") + t.text
            self.order.append(response.request_id)
        else:
            if response.finished.choice in answer.finished:
                self.complaint = f"{response.request_id}: finished twice"
            answer.finished[response.finished.choice] = response.finished

    def read(self):
        try:
            for response in self.call:
                with self.changed:
                    self.take(response)
                    self.changed.notify_all()
            status = (grpc.StatusCode.OK, "")
        except grpc.RpcError as e:
            status = (e.code(), e.details())
        with self.changed:
            self.status, self.over = status, True
            self.changed.notify_all()

    def wait(self, condition, what, seconds=60):
        with self.changed:
            assert self.changed.wait_for(lambda: self.complaint or condition(), patience(seconds)), \
                f"never: {what}; {self.status}; {[(i, a.tokens(), a.errors) for i, a in self.answers.items()]}"
            assert not self.complaint, self.complaint

    def wait_tokens(self, request_id, n):
        self.wait(lambda: request_id in self.answers and self.answers[request_id].tokens() >= n, f"{n} tokens")
        return self.answers[request_id]

    def wait_finished(self, request_id, n=1):
        self.wait(lambda: request_id in self.answers and len(self.answers[request_id].finished) == n, f"{request_id} finished")
        return self.answers[request_id]

    def wait_error(self, request_id, n=1):
        self.wait(lambda: request_id in self.answers and len(self.answers[request_id].errors) >= n, f"error of {request_id!r}")
        return self.answers[request_id].errors[n - 1].error

    def end(self, code=grpc.StatusCode.OK):
        self.half_close()
        self.wait(lambda: self.over, "the end")
        assert self.status[0] == code, self.status


def alone(served, request, **kwargs):
    copy = type(request)()
    copy.CopyFrom(request)
    copy.ClearField("credit_tokens")
    copy.ClearField("request_id")
    copy.ClearField("reattach_window_ms")
    return served.generate(copy, **kwargs)


def same(answer, reference, choice=0):
    text, ids, finished = reference
    assert (answer.text.get(choice, ""), answer.ids.get(choice, [])) == (text, ids)
    assert answer.finished[choice].reason == finished.reason
    assert answer.finished[choice].n_tokens == len(ids)


def quiet(stream, request_id, seconds=0.5):
    """Returns the number of tokens when no more tokens come."""
    with stream.changed:
        while True:
            n = stream.answers[request_id].tokens()
            if not stream.changed.wait_for(lambda: stream.answers[request_id].tokens() != n, seconds):
                return n


def rest(served):
    """Waits until no request runs and all KV blocks are free."""
    stub = served.stubs.inference_grpc.InferenceStub(served.channel)
    get = served.stubs.inference.GetModelRequest(model="smol")
    served.wait(lambda: sum(v.n_running + v.n_queued for v in stub.GetModel(get).model.versions) == 0, 15, "rest")
