"""The shortest path through all programs: register, load, generate, unload. Sanitizer builds run this test too."""
import grpc
import pytest


def test_the_model_answers_through_all_three_processes(served):
    request = served.request("smol", "The capital of France is", max_tokens=8)
    text, ids, finished = served.generate(request)
    assert "Paris" in text
    assert len(ids) == 8 and finished.n_tokens == 8
    assert finished.usage.n_generated_tokens == 8
    assert finished.receipt.replica_id and finished.receipt.weights_digest and finished.receipt.numerics_id


def test_complete_returns_what_generate_streams(served):
    request = served.request("smol", "Once upon a time", max_tokens=16, temperature=0.8, seed=7)
    text, ids, _ = served.generate(request)
    whole = served.inference.Complete(request)
    assert whole.choices[0].text == text and list(whole.choices[0].ids) == ids


def test_tokenize_and_detokenize_are_inverse(served):
    inference = served.stubs.inference
    text = "Hello, wörld 12345 \U0001f600"
    ids = served.inference.Tokenize(inference.TokenizeRequest(model="smol", text=text, add_special_tokens=False)).ids
    assert served.inference.Detokenize(inference.DetokenizeRequest(model="smol", ids=ids)).text == text


def test_list_and_get_models(served):
    inference = served.stubs.inference
    models = served.inference.ListModels(inference.ListModelsRequest()).models
    assert [m.name for m in models] == ["smol"]
    version = served.inference.GetModel(inference.GetModelRequest(model="smol")).model.versions[0]
    assert version.version == "1" and version.n_ready_replicas == 1
    assert version.info.architecture == "llama" and version.info.vocab_size == 49152


def test_unknown_model_is_not_found(served):
    with pytest.raises(grpc.RpcError) as e:
        list(served.inference.Generate(served.request("nobody", "x")))
    assert e.value.code() == grpc.StatusCode.NOT_FOUND


def test_chat_uses_the_models_template(served):
    inference = served.stubs.inference
    chat = inference.Chat(messages=[inference.ChatMessage(role="user", content="Say hello.")])
    request = inference.GenerateRequest(model="smol", chat=chat, stopping=inference.Stopping(max_tokens=12),
                                        output=inference.Output(return_prompt_token_ids=True))
    first = next(iter(served.inference.Generate(request)))
    text = served.inference.Detokenize(inference.DetokenizeRequest(
        model="smol", ids=first.prompt_info.prompt_token_ids, skip_special_tokens=False)).text
    assert text.endswith("<|im_start|>assistant\n") and "Say hello." in text
