"""Wrong usage of any command ends with exit status 2. A correct command that fails ends with 1."""
import json
import os
import re
import subprocess

import pytest

import setting_names
from conftest import BIN, names, patience

COMMANDS = setting_names.words(r"^  ([a-z]+(?: [a-z]+)?)  +\S", BIN / "sluice", "help")
DATA_PLANE = {"run", "chat", "tokenize", "bench serve"}
NO_MANAGER = DATA_PLANE | {"serve", "stop", "doctor", "key new", "bench engine", "completion", "man", "version"}


def run(*args, state="/dev/null/none", **env):
    return subprocess.run([BIN / "sluice", *map(str, args)], capture_output=True, text=True, input="", timeout=patience(30),
                          env={**os.environ, "SLUICE_STATE_DIR": str(state), **env})


def wrong(command):
    """Yields argument lists that this command must refuse."""
    name = command.split()
    page = run(*name, "--help").stdout
    words = re.search(rf"^usage: sluice {command} (.*)\[options\]", page, re.M)[1].split()
    least = ["bash" if word == "bash|zsh|fish" else f"2={i}" if "=" in word else str(i + 1)
             for i, word in enumerate(words) if word[0] != "["]
    least += ["text"] if command == "tokenize" else []  # without the text, tokenize reads standard input
    yield [*name, *least, "--no-such-option"]
    yield [*name, *least, "--no-such-option=1"]
    yield [*name, *least, "-Z"]
    yield [*name, *least, "--json=maybe"]
    yield [*name, *least, "--config"]
    yield [*name, *least, "--config", "/nonexistent/file"]
    if least and command != "tokenize":
        yield [*name, *least[1:]]
    if "..." not in "".join(words):
        yield [*name, *"x" * (len(words) + 1)]
    for option, value in re.findall(r"^ +(?:-\w, )? *--([a-z0-9-]+) ?(\S*)  ", page, re.M):
        if value in ("N", "X", "TIME", "BYTES", "SEQ"):
            yield [*name, *least, f"--{option}=nonsense"]
        if value:
            yield [*name, *least, f"--{option}"]
        elif option not in ("help",):
            yield [*name, *least, f"--{option}=maybe"]
    if command in DATA_PLANE:
        yield [*name, *least, "--server", "nonsense"]
        yield [*name, *least, "--server", "192.0.2.1:1", "--api-key", "slk_x"]
        yield [*name, *least, "--server", "127.0.0.1:1", "--tls-client-cert", "x"]
    elif command not in NO_MANAGER:
        yield [*name, *least, "--manager", "127.0.0.1:1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_ends_with_2(command):
    n = 0
    for args in wrong(command):
        result = run(*args)
        assert result.returncode == 2 and result.stderr and result.stdout == "", (args, result)
        n += 1
    assert n >= 7, "the pattern of the help has changed"
    told = run(*command.split(), "--json", "--no-such-option")
    assert told.returncode == 2 and json.loads(told.stderr)["error"]["code"] == "INVALID_ARGUMENT"
    assert json.loads(told.stderr)["error"]["reason"] == "USAGE"


@pytest.mark.parametrize("args", [[], ["nothing"], ["ops", "nothing"], ["groups", "nothing"], ["help", "nothing"], ["man", "nothing"],
                                  ["key"], ["completion", "csh"], ["key", "new", "a b"], ["key", "new", "acme", "--role", "king"],
                                  ["key", "new", "acme", "--expires", "soon"], ["keys", "create", "x", "--role", "king"],
                                  ["keys", "create", "x", "--role", "admin", "--expires", "soon"], ["scale", "m", "0"],
                                  ["traffic", "m", "2"], ["traffic", "m", "2=1", "--clear"], ["update", "m"], ["policy", "m", "1", "--all"],
                                  ["update", "m", "--to", "2", "--steps", "x"], ["tokenize", "m", "a", "b"],
                                  ["tokenize", "m", "--detokenize", "x"], ["run", "m:", "x"], ["run", "m:1", "x", "--version", "1"],
                                  ["run", "m", "x", "--stop", ""], ["bench", "engine", "x", "--draft-always"], ["bench", "serve", "x", "--chat"],
                                  ["serve", "--listen", "127.0.0.1:1", "--metrics", "127.0.0.1:1"], ["serve", "--log-level", "loud"]],
                         ids=" ".join)
def test_words_that_cannot_be_end_with_2(args):
    result = run(*args)
    assert result.returncode == 2 and result.stderr and result.stdout == "", result


@pytest.mark.parametrize("args, meant", [(["stauts"], "status"), (["opps"], "ops"), (["ops", "wach"], "watch"),
                                         (["run", "m", "x", "--temprature", "1"], "--temperature")])
def test_a_mistyped_word_is_refused_with_the_nearest_one(args, meant):
    """`no command "stauts"` and `--temprature: no such option` suggested nothing."""
    result = run(*args)
    assert result.returncode == 2 and names(result.stderr.splitlines()[0], meant), result.stderr


def test_a_prompt_without_quotes_is_refused_with_the_remedy():
    """`run smol a b` printed the usage only."""
    assert "quotes" in run("run", "m", "a", "b").stderr and "quotes" not in run("run", "m").stderr


@pytest.mark.parametrize("args", [["ps"], ["ls"], ["run", "m", "x"], ["stop"], ["tokenize", "m", "x"],
                                  ["register", "m", "/nonexistent.gguf"], ["bench", "engine", "/nonexistent.gguf"]], ids=" ".join)
def test_what_could_not_be_done_ends_with_1(args, tmp_path):
    result = run(*args, "--server", "127.0.0.1:1", state=tmp_path)
    assert result.returncode == 1 and result.stderr and result.stdout == "", result
