"""`sluice plan` divides a model over devices that need not exist. The bytes are those of a load. Impossible splits are
named with the rule. Only splits that a load accepts are recommended."""
import json
import subprocess
import sys

import pytest

from conftest import BIN, ROOT, Sluice, names, patience

sys.path.insert(0, str(ROOT / "tests/support"))
from sparse_gguf import write_llama  # noqa: E402

TINY = ROOT / "tests/golden/tiny/q4_1.gguf"


def run(*args, command="plan", check=0, state="/nonexistent"):
    result = subprocess.run([BIN / "sluice", command, *map(str, args), "--state-dir", str(state)], capture_output=True, text=True,
                            timeout=patience(60))
    assert check is None or result.returncode == check, (result.stdout, result.stderr)
    return result


def splits(*args, **kwargs):
    (group,) = json.loads(run(*args, "--json", **kwargs).stdout)["groups"]
    return {(s["tp"], s["pp"]): s for s in group["splits"]}


def refusal(*args, check=1):
    result = run(*args, "--json", check=check)
    assert result.stdout == "", result
    return json.loads(result.stderr)["error"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The header of a Llama of 70 billion parameters: the weights are a hole in the file."""
    return write_llama(tmp_path_factory.mktemp("large") / "70b.gguf", "70b")


def test_a_large_model_on_eight_gpus(large):
    """141 GB in bf16 fit one or two GPUs in no way, and eight of them in shares."""
    found = splits(large, "--groups", "8xh100", "--kv-tokens", "65536", check=None)
    assert set(found) == {(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1)}
    assert not found[1, 1].get("fits") and found[1, 1]["missing_bytes"] > 60e9
    eight = found[8, 1]
    assert eight["fits"] and len(eight["ranks"]) == 8
    # each rank looks tokens up in an embedding of its own
    assert abs(sum(r["weight_bytes"] for r in eight["ranks"]) - 141.1e9 - 7 * 2 * 128256 * 8192) < 1e9
    # attention's output and the MLP's in 80 layers, f32, to seven ranks
    assert all(r["wire_token_bytes"] == 80 * 2 * 8192 * 4 * 7 for r in eight["ranks"])
    # prediction of one request: at least the time of reading the weights
    speed = eight["prediction"]["tokens_per_second_alone"]
    assert 50 < speed < 2.4e12 / (141e9 / 8)
    assert found[1, 8]["prediction"]["tokens_per_second_alone"] < speed / 4
    assert found[1, 8]["ranks"][7]["stage"] == 7 and found[1, 8]["ranks"][0]["wire_token_bytes"] == 8192 * 4


def test_splits_that_no_load_accepts_are_marked(large):
    """A replica has one machine, so two machines with one GPU each have no split that holds this model. The exit code
    says so."""
    result = run(large, "--groups", "2x1xh200:memory=100G", check=3)
    found = splits(large, "--groups", "2x1xh200:memory=100G", check=3)
    assert not any(s.get("recommended") for s in found.values())
    assert found[1, 2]["fits"] and found[1, 2]["not_supported"] and found[2, 1]["refusal"] and not found[1, 1].get("not_supported")
    assert names(result.stdout, "2x1xh200", "not supported", found[1, 2]["not_supported"])


def test_a_split_is_what_a_load_would_take():
    """Each rank has the weights of the plan of a load."""
    found = splits(TINY, "--groups", "4xcpu", "--kv-tokens", "2048")
    for tp, pp in ((1, 1), (2, 1), (2, 2)):
        load = json.loads(run(TINY, "--tp", tp, "--pp", pp, "--kv-tokens", "2048", "--json", command="inspect").stdout)["plan"]
        ranks = found[tp, pp]["ranks"]
        assert found[tp, pp]["n_kv_tokens"] == load["n_kv_tokens"] == 2048
        # the first rank's row of a load also has the memory that ranks share
        assert [r["weight_bytes"] for r in ranks] == [d["weight_bytes"] for d in load["devices"]]
        assert [r["kv_bytes"] for r in ranks] == [d["kv_bytes"] for d in load["devices"]]
        assert [r.get("wire_token_bytes", 0) for r in ranks] == [d.get("wire_token_bytes", 0) for d in load["devices"]]
    assert [s for s in found if found[s].get("recommended")]


def test_a_plan_of_a_load_predicts_its_speed():
    plan = json.loads(run(TINY, "--kv-tokens", "2048", "--json", command="inspect").stdout)["plan"]
    assert plan["prediction"]["kind"] == "cpu" and plan["prediction"]["tokens_per_second_alone"] > 0


@pytest.mark.parametrize("args,check,wanted", [
    (("--groups", "8xh1000"), 1, ("h1000", "h100", "cpu")),
    (("--groups", "8xh100:speed=1"), 1, ("speed", "memory")),
    (("--groups", "8xh100,"), 1, ("--groups", "empty")),
    (("--groups", "2xgpu"), 1, ("2xgpu", "memory=")),
    (("--groups", "2x2xcpu"), 1, ("2x2xcpu", "machine")),
    (("--tp", "16"), 2, ("--tp", 8)),
    (("--groups", "3xcpu", "--tp", "2"), 1, ("tp", 2, 3)),
    (("--groups", "2xh100", "--kv-tokens", "0x"), 2, ("--kv-tokens",)),
])
def test_bad_words_are_named(args, check, wanted):
    assert names(refusal(TINY, *args, check=check)["message"], *wanted)


@pytest.mark.parametrize("path,args,wanted", [
    ("q4_1.gguf", ("--tp", "3", "--pp", "1"), ("tp", 3, "1, 2, 4, 8")),
    ("q4_1.gguf", ("--tp", "1", "--pp", "8"), ("pp", "8 stages", "layers")),
    ("gemma4.gguf", ("--tp", "1", "--pp", "2"), ("pp", "2 stages", "first stage")),
    ("q4_1.gguf", ("--tp", "8", "--pp", "4"), ("32 ranks", "8 cores")),
])
def test_impossible_splits_name_the_rule(path, args, wanted):
    path = ROOT / "tests/golden/tiny" / path
    (row,) = splits(path, "--groups", "8xcpu", *args, check=3).values()
    assert names(row["refusal"], *wanted) and not row.get("ranks")
    assert names(run(path, "--groups", "8xcpu", *args, check=3).stdout, "impossible", *wanted)


def test_unknown_names_need_a_manager():
    assert names(run(TINY, "--groups", "gpus", check=1).stderr, "gpus", "8xh100")
    assert refusal("no-such-model", "--groups", "8xh100")


def test_registered_models_and_groups_of_the_manager(tmp_path, stubs):
    sluice = Sluice(tmp_path, stubs)
    sluice.start()
    try:
        sluice.cli("register", "tiny", TINY, "--version", "1")
        sluice.cli("groups", "create", "left", "cpu:0")
        by_path = splits(TINY, "--groups", "4xcpu", "--kv-tokens", "2048")
        (group,) = json.loads(sluice.cli("plan", "tiny", "--groups", "4xcpu", "--kv-tokens", "2048", "--json").stdout)["groups"]
        assert [s.get("ranks") for s in group["splits"]] == [s.get("ranks") for s in by_path.values()]
        (named,) = json.loads(sluice.cli("plan", "tiny:1", "--groups", "left:read=9G", "--requests", "1", "--json").stdout)["groups"]
        assert named["group"] == "left" and named["kind"] == "cpu" and named["read_bytes_per_second"] == 9e9
        assert named["memory_bytes"] > 1 << 20 and named["n_devices"] >= 1
        wrong = sluice.cli("plan", "tiny", "--groups", "right", check=False)
        assert wrong.returncode == 1 and names(wrong.stderr, "right", "sluice groups")
        wrong = sluice.cli("plan", "tiny", "--groups", "8xh1000", check=False)
        assert wrong.returncode == 1 and names(wrong.stderr, "h1000", "h200")
    finally:
        sluice.stop()


def test_help_has_examples_and_the_words_of_a_group():
    text = run("--help", state="").stdout
    assert names(text, "2x8xh100", "--groups", "--requests", "latency", "memory")
