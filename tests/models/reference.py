"""Transformers in f32 as the reference of a real model. Runs in the virtual environment of tests/golden/regen.sh.

    python reference.py compute MODEL <job.json     greedy tokens and log-probabilities, as JSON on stdout
    python reference.py folder GGUF FOLDER          writes the model of a GGUF file as a Hugging Face folder in BF16

MODEL is a GGUF file, whose weights transformers itself dequantizes, or a folder. A job has `greedy`, a list of prompts as
lists of token ids, `steps`, and `windows`, whose tokens get log-probabilities."""

import json
import os
import pathlib
import sys

os.environ["TQDM_DISABLE"] = "1"  # read by the import below
import torch  # noqa: E402
import transformers  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from torch_models import hf_llama  # noqa: E402
from torch_models.gguf_model import Model  # noqa: E402


def load(path):
    torch.set_num_threads(1)  # several threads wait for each other where other programs run
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    path = pathlib.Path(path)
    where = {"pretrained_model_name_or_path": path} if path.is_dir() else {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    return transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()


def greedy(hf, ids, steps):
    """Returns the ids that follow, and for each the margin between the two highest logits."""
    out, margins, past, feed = [], [], None, torch.tensor([ids])
    for _ in range(steps):
        r = hf(feed, past_key_values=past, use_cache=True)
        past = r.past_key_values
        best = r.logits[0, -1].topk(2)
        out.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        feed = torch.tensor([[out[-1]]])
    return {"ids": out, "margins": margins}


def logprobs(hf, ids):
    """The log-probability of each token but the first."""
    logits = hf(torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return [float(torch.log_softmax(row.double(), 0)[target]) for row, target in zip(logits, ids[1:])]


def compute(path):
    job = json.load(sys.stdin)
    hf = load(path)
    with torch.no_grad():
        json.dump({"greedy": [greedy(hf, ids, job["steps"]) for ids in job["greedy"]], "logprobs": [logprobs(hf, ids) for ids in job["windows"]]},
                  sys.stdout)  # fmt: skip


def folder(path, out):
    """Only for the sample model, whose weights and tokenizer the modules of tests/golden convert."""
    model = Model(path)
    out = pathlib.Path(out)
    hf_llama.load(model).to(torch.bfloat16).save_pretrained(out)
    model.tokenizer(parse_special=True).save(str(out / "tokenizer.json"))
    tokens = model.field("tokenizer.ggml.tokens")
    config = {
        "tokenizer_class": "GPT2Tokenizer", "chat_template": model.field("tokenizer.chat_template"), "add_bos_token": False,
        "bos_token": tokens[model.field("tokenizer.ggml.bos_token_id")], "eos_token": tokens[model.field("tokenizer.ggml.eos_token_id")],
    }  # fmt: skip
    (out / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    {"compute": compute, "folder": folder}[sys.argv[1]](*sys.argv[2:])
