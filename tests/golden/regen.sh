#!/usr/bin/env bash
# regen.sh: makes the golden files again from pinned packages. The virtual environment is
# ${XDG_CACHE_HOME:-~/.cache}/sluice/golden-venv (some 7 GB because of torch). A run takes a few minutes.
#
#     regen.sh               everything but the arithmetic table
#     regen.sh NAME ...      make_NAME.py only: templates tokenizer tokenizers dequant logits tiny tiny_gpt families experts
#                            quantized ollama greedy sampler
#     regen.sh --venv        makes only the virtual environment
#     regen.sh arithmetic    prints the table of docs/log/2026-11-21-arithmetic.md, writes nothing
#     regen.sh --tokenizers PROGRAM   compares tokenizer_ids with the reference tokenizers on 2,000 strings each
#     regen.sh --models PROGRAM [--seed N] [--all] [FAMILY ...]
#                            compares model_logits with transformers on random models (random/compare.py)
#     regen.sh --compare     builds llama-cpp-python and compares its tokenizer with the golden ids
#     regen.sh --compare-templates TEST
#                            compares the engine with jinja2 on the chat templates in llama-cpp-python's source; TEST is
#                            the path of test_engine_template_golden
#
# Integer and text files are the same to the byte on each run. Logits may differ in the last bits on another CPU.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

venv=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/golden-venv
if [[ ! -x $venv/bin/python ]] || ! cmp -s requirements.txt "$venv/requirements.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$venv/requirements.txt"
fi
export PYTHONDONTWRITEBYTECODE=1
python=$venv/bin/python

if [[ ${1:-} == --venv ]]; then
    exit
fi
if [[ ${1:-} == --compare ]]; then
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF" "$python" -m pip install --quiet --disable-pip-version-check \
        llama-cpp-python==0.3.36
    exec "$python" make_tokenizer.py --compare
fi
if [[ ${1:-} == --compare-templates ]]; then
    test=$(realpath "$2")
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: -d "$folder" \
        llama-cpp-python==0.3.36
    mkdir "$folder/templates"
    tar -xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder/templates" --strip-components=5 --wildcards \
        '*/vendor/llama.cpp/models/templates/*.jinja'
    "$python" make_templates.py "$folder/templates"
    SLUICE_TEMPLATES=$folder/templates "$test" families
    exit
fi
if [[ ${1:-} == --models ]]; then
    exec "$python" random/compare.py "${@:2}"
fi
if [[ ${1:-} == --tokenizers ]]; then
    exec "$python" make_tokenizers.py --compare "$2"
fi
if [[ ${1:-} == arithmetic ]]; then
    exec "$python" arithmetic.py
fi
for name in "${@:-templates tokenizer tokenizers dequant logits tiny tiny_gpt families experts quantized ollama greedy sampler}"; do
    for one in $name; do
        echo "== $one"
        script=make_$one.py
        [[ -f $script ]] || script=dialects/$script
        "$python" "$script"
    done
done
