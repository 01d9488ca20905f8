"""The comparison over OpenAI's HTTP API; openai_peers.sh starts it."""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import common  # noqa: E402
import llama_cpp  # noqa: E402
import ours  # noqa: E402
import report  # noqa: E402
from common import Unavailable  # noqa: E402

EXAMPLES = """examples:
  tests/bench/openai/openai_peers.sh                          32 clients, 96 requests, 5 runs of each
  tests/bench/openai/openai_peers.sh --quick                  one run of each, one setting of llama-server
  tests/bench/openai/openai_peers.sh --model model.gguf --json out.json

The default model is the sample model (etc/fetch_model.sh). llama-server is built in ~/.cache/sluice/peers, where a later run
finds it. SLUICE_BIN: programs to use in place of the release preset's. The machine should be otherwise idle."""


def say(text):
    print(f"openai peers: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def arguments():
    p = argparse.ArgumentParser(prog="tests/bench/openai/openai_peers.sh", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
                                description="Sluice beside llama-server under the same load over OpenAI's HTTP API.")  # fmt: skip
    p.add_argument("--model", metavar="FILE", help="GGUF file (default: the sample model)")
    p.add_argument("--clients", type=int, default=32, metavar="N", help="requests in flight (default: 32)")
    p.add_argument("--requests", type=int, metavar="N", help="of a run (default: 3 for each client; 1 with --quick)")
    p.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="of each prompt (default: 128)")
    p.add_argument("--max-tokens", type=int, default=128, metavar="N", help="of each answer (default: 128)")
    p.add_argument("--vocab-size", type=int, default=1000, metavar="N", help="random prompts have token ids below N (default: 1000)")
    p.add_argument("--runs", type=int, metavar="N", help="of each server, in turn (default: 5; 1 with --quick)")
    p.add_argument("--quick", action="store_true", help="one run of each, one setting of llama-server")
    p.add_argument("--json", metavar="FILE", help="results as JSON too")
    args = p.parse_args()
    args.runs = args.runs or (1 if args.quick else 5)
    args.requests = args.requests or args.clients * (1 if args.quick else 3)
    for name in ("clients", "requests", "runs", "prompt_tokens", "max_tokens"):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')}: at least 1")
    return args


class Comparison:
    def __init__(self, args, sluice):
        self.args, self.sluice = args, sluice
        self.load = common.Load(args.clients, args.requests, args.prompt_tokens, args.max_tokens)

    def measure(self, url, model):
        """The same load on any server. Returns tokens per second, and times in ms."""
        args = self.args
        out = common.run([self.sluice.bin / "sluice", "bench", "serve", model, "--http", url, "--clients", args.clients, "--requests", args.requests,
                          "--warmup", args.clients, "--prompt-tokens", args.prompt_tokens, "--max-tokens", args.max_tokens, "--vocab-size",
                          args.vocab_size, "--json"], 1800, env=self.sluice.environment)  # fmt: skip
        said = json.loads(out)
        counts = said["requests"]
        if counts["ok"] != args.requests or counts["ended_early"]:
            raise Unavailable(f"{url}: {counts}: {said.get('first_error', 'answers are too short')}")
        times = {f"{t}_{p}_ms": said[f"{t}_ms"][p] for t in ("ttft", "itl") for p in ("p50", "p99")}
        return dict(times, tokens_per_s=said["output_tokens_per_second"], seconds=said["seconds"])

    @contextlib.contextmanager
    def serving(self, path):
        """`sluice serve` with this model: its URL."""
        with tempfile.TemporaryDirectory(prefix="sluice-peers-") as state:
            address = f"127.0.0.1:{common.free_port()}"
            with open(f"{state}/out", "w") as log:
                process = subprocess.Popen([self.sluice.bin / "sluice", "serve", path, "--name", "m", "--state-dir", state, "--json", "--listen",
                                            f"127.0.0.1:{common.free_port()}", "--http-listen", address, "--metrics", "", "--manager-metrics", ""],
                                           stdout=log, stderr=log, env=self.sluice.environment)  # fmt: skip
            try:
                until = time.monotonic() + 300
                while '"event":"ready"' not in pathlib.Path(state, "out").read_text():
                    if process.poll() is not None or time.monotonic() > until:
                        raise Unavailable("sluice serve: " + common.last_words(pathlib.Path(state, "out").read_text()))
                    time.sleep(0.05)  # between two checks of a condition
                yield f"http://{address}"
            finally:
                common.end(process)

    def of_sluice(self, path):
        with self.serving(path) as url:
            return self.measure(url, "m")

    def of_llama(self, peer, setting):
        with peer.server(self.load, setting) as (port, _, _process):
            return self.measure(f"http://127.0.0.1:{port}", "m")

    def best_setting(self, peer):
        settings = peer.served_settings(self.load, peer.settings(len(os.sched_getaffinity(0))))
        if self.args.quick:
            settings = [s for s in settings if s["flash"] == "on" and s["slots"] == self.args.clients][-1:]
        tried = []
        for setting in settings:
            try:
                tried.append((self.of_llama(peer, setting)["tokens_per_s"] if len(settings) > 1 else 0, setting))
            except Unavailable as e:
                say(f"llama-server, {report.setting_text(setting)}: {e}")
        if not tried:
            raise Unavailable("llama-server works with none of its settings")
        return max(tried, key=lambda t: t[0])[1]


def main():
    args = arguments()
    sluice, peer = ours.Sluice(), llama_cpp.LlamaCpp()
    say("build or find the programs")
    rep = report.Report(args.quick, sluice.build())
    rep.peer(peer.name, version=peer.install(common.CACHE / "peers"))
    path = args.model or common.run([common.ROOT / "etc/fetch_model.sh"], 900).splitlines()[-1]
    title = pathlib.Path(path).stem
    peer.prepare(common.Model(title, "GGUF", path))
    comparison = Comparison(args, sluice)
    setting = comparison.best_setting(peer)
    mine, theirs = [], []
    for i in range(args.runs):
        say(f"run {i + 1} of {args.runs}, llama-server with {report.setting_text(setting)}")
        mine.append(comparison.of_sluice(path))
        theirs.append(comparison.of_llama(peer, setting))
    rep.add(peer.name, title, f"OpenAI, {args.clients} clients", setting, mine, theirs)
    rep.save(args.json)
    print(rep.text())


if __name__ == "__main__":
    try:
        main()
    except Unavailable as e:
        sys.exit(f"openai peers: {e}")
