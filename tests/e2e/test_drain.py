"""SIGTERM, seen by those whose streams are just ending."""
import signal
import threading

import grpc

from conftest import patience
from plumbing import Plumbing


def test_streams_that_end_while_the_server_drains_lose_nothing(tmp_path, stubs):
    """Many short streams, of which the last of a connection ends together with it, as GOAWAY wants: the last tokens, the
    end and the status arrive all the same."""
    p = Plumbing(tmp_path, stubs, rate=50)
    inference = stubs.inference
    n_channels, n_streams, n_rounds = 16, 6, 4
    try:
        for _ in range(n_rounds):
            channels = [grpc.insecure_channel(p.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(n_channels)]
            begun, wrong = threading.Barrier(n_channels * n_streams + 1), []

            def run(channel, n_tokens):
                request = inference.GenerateRequest(model="echo", text="drain")
                request.stopping.max_tokens = n_tokens
                ids, ended = [], 0
                try:
                    call = stubs.inference_grpc.InferenceStub(channel).Generate(request, timeout=patience(60))
                    for i, response in enumerate(call):
                        if i == 0:
                            begun.wait(patience(30))
                        ids += response.tokens.ids
                        ended += response.WhichOneof("event") == "finished"
                except grpc.RpcError as e:
                    wrong.append((n_tokens, len(ids), ended, e.code(), e.details()))
                else:
                    if len(ids) != n_tokens or ended != 1:
                        wrong.append((n_tokens, len(ids), ended))
            threads = [threading.Thread(target=run, args=(channel, 5 + 7 * i + k)) for k, channel in enumerate(channels)
                       for i in range(n_streams)]
            for thread in threads:
                thread.start()
            begun.wait(patience(30))
            p.server.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(patience(90))
            assert wrong == []
            assert p.server.wait(patience(20)) == 0
            for channel in channels:
                channel.close()
            p.start_server()
    finally:
        p.stop()
