"""OpenVINO GenAI, which reads GGUF files itself; a model it has read once is kept in its own form."""

import pathlib

import numpy as np
import openvino
import openvino_genai


def prepare(gguf, folder):
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    openvino_genai.LLMPipeline(gguf, "CPU", INFERENCE_NUM_THREADS=1)  # raises if OpenVINO cannot read the file
    return "the same file, its groups kept as int4 or int8; activations and KV as the CPU plugin chooses"


class Engine:
    def __init__(self, gguf, _folder, setting):
        self.pipeline = openvino_genai.LLMPipeline(gguf, "CPU", INFERENCE_NUM_THREADS=setting["threads"])

    def generate(self, prompts, n):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = n
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        return [list(t) for t in self.pipeline.generate(inputs, config).tokens]
