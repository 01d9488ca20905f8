"""The manifests of etc/kubernetes: they follow Kubernetes' schemas, agree with each other, and start a real Sluice. No cluster
runs here. kubernetes-validate knows Kubernetes' own kinds. SCHEMAS has the fields of other kinds that the manifests use."""
import itertools
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import grpc
import jsonschema
import kubernetes_validate
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from conftest import BIN, ROOT, free_port, model_path, patience, until
from pki import Authority

FOLDER = ROOT / "etc/kubernetes"
VERSIONS = ["1.32", "1.37"]
BY_NAME = {"type": "object", "required": ["matchLabels"], "additionalProperties": False, "properties": {"matchLabels": {"type": "object"}}}


def kind(required, **properties):
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
SCHEMAS = {
    "ServiceMonitor": kind(["selector", "endpoints"], selector=BY_NAME, endpoints={
        "type": "array", "minItems": 1, "items": kind(["port"], port=TEXT, path=TEXT, interval={"type": "string", "pattern": r"^\d+s$"})}),
    "ScaledObject": kind(["scaleTargetRef", "triggers"], scaleTargetRef=kind(["name"], apiVersion=TEXT, kind=TEXT, name=TEXT),
                         minReplicaCount=NUMBER, maxReplicaCount=NUMBER, pollingInterval=NUMBER, cooldownPeriod=NUMBER, triggers={
        "type": "array", "minItems": 1, "items": kind(["type", "metadata"], type={"const": "prometheus"}, metadata=kind(
            ["serverAddress", "query", "threshold"], serverAddress=TEXT, query=TEXT, threshold={"type": "string", "pattern": r"^\d+$"}))}),
    "InferencePool": kind(["selector", "targetPorts", "endpointPickerRef"], selector=BY_NAME, targetPorts={
        "type": "array", "minItems": 1, "items": kind(["number"], number=NUMBER)}, endpointPickerRef=kind(
            ["name", "port"], name=TEXT, port=kind(["number"], number=NUMBER), failureMode={"enum": ["FailOpen", "FailClose"]})),
}
GROUPS = {"ServiceMonitor": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1", "InferencePool": "inference.networking.k8s.io/v1"}


def documents():
    return [(path, document) for path in sorted(FOLDER.rglob("*.yaml")) for document in yaml.safe_load_all(path.read_text())]


def of_kind(name):
    return [document for _, document in documents() if document["kind"] == name]


SETS = of_kind("StatefulSet") + of_kind("Deployment")


def spec_of(workload):
    return workload["spec"]["template"]["spec"]


def container_of(workload):
    (container,) = spec_of(workload)["containers"]
    return container


def flags_of(workload):
    return dict(a.split("=", 1) for a in container_of(workload)["args"] if a.startswith("--"))


def milliseconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", text).groups()
    return int(number) * {"ms": 1, "s": 1000, "m": 60000}[unit]


workloads = pytest.mark.parametrize("workload", SETS, ids=[w["metadata"]["name"] for w in SETS])


def check_schema(document):
    if document["kind"] in SCHEMAS:
        assert document["apiVersion"] == GROUPS[document["kind"]]
        jsonschema.validate(document["spec"], SCHEMAS[document["kind"]])
        return
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def test_every_manifest_follows_its_schema():
    kinds = set()
    for path, document in documents():
        kinds.add(document["kind"])
        try:
            check_schema(document)
        except jsonschema.ValidationError as error:  # the text has the whole schema
            message = f"{path.name}: {error.message}"
        else:
            continue
        pytest.fail(message, pytrace=False)
    assert kinds == {"ConfigMap", "Secret", "PersistentVolumeClaim", "Service", "StatefulSet", "Deployment", "PodDisruptionBudget",
                     "NetworkPolicy", "ServiceMonitor", "ScaledObject", "InferencePool"}


@workloads
def test_flags_ports_and_paths_are_the_programs(workload):
    container, flags = container_of(workload), flags_of(workload)
    assert container["command"] == ["/usr/bin/sluice"] and container["args"][0] == "serve"
    known = subprocess.run([BIN / "sluice", "serve", "--help"], capture_output=True, text=True, check=True).stdout
    for flag in flags:
        assert re.search(rf"^ +(-\w, )?+ *{flag} ", known, re.M), flag
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    by_flag = {name: int(flags[flag].rsplit(":", 1)[1]) for name, flag in
               {"http": "--http-listen", "grpc": "--listen", "metrics": "--metrics", "manager-metrics": "--manager-metrics"}.items() if flags[flag]}
    assert ports == by_flag
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        how = container[probe]
        port = how["httpGet"]["port"] if "httpGet" in how else how["grpc"]["port"]
        assert port in ports or port in ports.values()
    # Each path lies in a volume, and each volume exists.
    volumes = {v["name"] for v in spec_of(workload)["volumes"]} | {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
    mounts = container["volumeMounts"]
    assert {m["name"] for m in mounts} == volumes
    paths = [a for a in [container["args"][1], *flags.values()] if a.startswith("/")]
    assert all(any(pathlib.PurePath(p).is_relative_to(m["mountPath"]) for m in mounts) for p in paths), paths
    (writable,) = [m["mountPath"] for m in mounts if not m.get("readOnly")]
    assert pathlib.PurePath(flags["--state-dir"]).parent == pathlib.PurePath(writable)  # Sluice makes its folder, with its mode


@workloads
def test_pods_are_hardened_and_have_time_to_drain(workload):
    spec, container = spec_of(workload), container_of(workload)
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    # Variables of service links (SLUICE_PORT) have the form of Sluice's settings.
    assert spec["enableServiceLinks"] is False and spec["automountServiceAccountToken"] is False
    pause_ms = 1000 * container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 1000 * spec["terminationGracePeriodSeconds"] >= pause_ms + milliseconds(flags_of(workload)["--drain-grace"]) + 20000
    for volume in spec["volumes"]:
        assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440


def test_the_manifests_agree_with_each_other():
    pods = {json.dumps(w["spec"]["selector"]["matchLabels"], sort_keys=True): w for w in SETS}
    for workload in SETS:
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels
    selectors = [s["spec"]["selector"] for s in of_kind("Service")] + \
                [d["spec"]["selector"]["matchLabels"] for d in of_kind("PodDisruptionBudget") + of_kind("InferencePool")] + \
                [n["spec"]["podSelector"]["matchLabels"] for n in of_kind("NetworkPolicy")]
    assert {json.dumps(s, sort_keys=True) for s in selectors} == set(pods)
    ports_of = {name: {p["name"]: p["containerPort"] for p in container_of(w)["ports"]} for name, w in pods.items()}
    for service in of_kind("Service"):
        own = ports_of[json.dumps(service["spec"]["selector"], sort_keys=True)]
        assert all(own[p["targetPort"]] == p["port"] for p in service["spec"]["ports"])
    for policy in of_kind("NetworkPolicy"):
        own = ports_of[json.dumps(policy["spec"]["podSelector"]["matchLabels"], sort_keys=True)]
        assert {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]} == set(own)
        assert policy["spec"]["egress"] == []
    (pool,) = of_kind("InferencePool")
    assert pool["spec"]["targetPorts"][0]["number"] == ports_of[json.dumps(pool["spec"]["selector"]["matchLabels"], sort_keys=True)]["http"]
    (monitor,), (scaled,) = of_kind("ServiceMonitor"), of_kind("ScaledObject")
    watched = [s for s in of_kind("Service") if monitor["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
    assert [{e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in s["spec"]["ports"]} for s in watched] == [True]
    metrics = (ROOT / "docs/use/metrics.md").read_text()
    for name in re.findall(r"sluice_\w+", scaled["spec"]["triggers"][0]["metadata"]["query"]):
        assert f"| `{name}` |" in metrics
    assert scaled["spec"]["scaleTargetRef"]["name"] in [w["metadata"]["name"] for w in of_kind("StatefulSet")]
    (stateful,) = of_kind("StatefulSet")
    assert stateful["spec"]["serviceName"] in [s["metadata"]["name"] for s in of_kind("Service") if s["spec"].get("clusterIP") == "None"]
    named = {s["metadata"]["name"] for k in ("ConfigMap", "Secret", "PersistentVolumeClaim") for s in of_kind(k)}
    used = {v.get("secret", {}).get("secretName") or v.get("configMap", {}).get("name") or v.get("persistentVolumeClaim", {}).get("claimName")
            for w in SETS for v in spec_of(w)["volumes"] if "emptyDir" not in v}
    assert used == named


# --- a pod, without Kubernetes: the container's command with the volumes below a folder ---

revisions = itertools.count()


def write_secret(folder, **files):
    """Writes a volume of a Secret as the kubelet does: names are links to ..data, which is a link to the current folder."""
    folder.mkdir(exist_ok=True)
    now = folder / f"..2026_11_28_{next(revisions)}"
    now.mkdir(mode=0o755)
    for name, content in files.items():
        (now / name).write_bytes(content)
        (now / name).chmod(0o440)
    (folder / "..data_tmp").symlink_to(now.name)
    (folder / "..data_tmp").rename(folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


class Pod:
    def __init__(self, workload, folder):
        self.workload, self.folder = workload, folder
        self.container = container_of(workload)
        self.ports = {p["containerPort"]: free_port() for p in self.container["ports"]}
        self.names = {p["name"]: self.ports[p["containerPort"]] for p in self.container["ports"]}
        for mount in self.container["volumeMounts"]:
            path = self.path(mount["mountPath"])
            (path.parent if "subPath" in mount else path).mkdir(parents=True, exist_ok=True)
        (self.path("/models/model.gguf")).symlink_to(model_path())

    def path(self, inside):
        return self.folder / inside.lstrip("/")

    def argument(self, text):
        text = re.sub(r"0\.0\.0\.0:(\d+)", lambda m: f"0.0.0.0:{self.ports[int(m[1])]}", text)
        return re.sub(r"(^|=)/", rf"\1{self.folder}/", text)

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        args = [self.argument(a) for a in self.container["args"]]
        args = [a.replace(f"{self.folder}/models", str(pathlib.Path(model_path()).parent)) if "model-root" in a else a for a in args]
        self.log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen([BIN / "sluice", *args], env=env, stdout=self.log, stderr=self.log)
        return self

    def get(self, path, key=None, port="http", data=None):
        """Returns (status, open answer); None where the port is closed."""
        tls = "--tls-cert" in flags_of(self.workload) and port == "http"
        context = ssl._create_unverified_context() if tls else None
        request = urllib.request.Request(f"{'https' if tls else 'http'}://127.0.0.1:{self.names[port]}{path}", data=data,
                                         headers={"authorization": f"Bearer {key}"} if key else {})
        try:
            answer = urllib.request.urlopen(request, timeout=patience(10), context=context)
            return answer.status, answer
        except urllib.error.HTTPError as error:
            return error.code, error
        except (urllib.error.URLError, ConnectionError):
            return None, None

    def passes(self, probe):
        how = self.container[probe]
        if "httpGet" in how:
            status, answer = self.get(how["httpGet"]["path"])
            if answer:
                answer.close()
            return status == 200
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[how['grpc']['port']]}") as channel:  # a new connection, as the kubelet's
            try:
                request = health_pb2.HealthCheckRequest(service=how["grpc"].get("service", ""))
                return health_pb2_grpc.HealthStub(channel).Check(request, timeout=patience(2)).status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError:
                return False

    def wait(self, condition, seconds, what):
        def alive():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return condition()
        until(alive, seconds, lambda: f"{what}\n{(self.folder / 'log').read_text()}", 0.02)

    def chat(self, key=None, **extra):
        body = {"model": "chat", "messages": [{"role": "user", "content": "Count to a hundred."}], "max_tokens": 8, **extra}
        return self.get("/v1/chat/completions", key, data=json.dumps(body).encode())

    def stop(self):
        """Ends a pod as the kubelet does after preStop: drains with a running stream. Returns the seconds it took."""
        self.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert self.process.wait(patience(spec_of(self.workload)["terminationGracePeriodSeconds"])) == 0
        return time.monotonic() - started

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(patience(90))


def new_key():
    return json.loads(subprocess.run([BIN / "sluice", "key", "new", "acme", "--json"], capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def folder(tmp_path_factory):
    """A folder with a short name, because the path of a socket in it has at most 107 bytes."""
    return tmp_path_factory.mktemp("k")


@pytest.fixture
def node(folder):
    pod = Pod(of_kind("StatefulSet")[0], folder)
    (config,) = of_kind("ConfigMap")
    pod.path("/etc/sluice/sluice.conf").write_text(config["data"]["sluice.conf"])
    yield pod
    pod.kill()


def certificate(pod):
    return ssl.get_server_certificate(("127.0.0.1", pod.names["http"]))


def test_a_node_starts_drains_and_comes_back_with_its_state(node, folder):
    (folder / "pki").mkdir()
    authority = Authority(folder / "pki", "ca")
    first, second = (authority.issue(name, "sluice", "DNS:sluice") for name in ("first", "second"))
    key = new_key()
    write_secret(node.path("/etc/sluice/tls"), **{"tls.crt": first[0].read_bytes(), "tls.key": first[1].read_bytes()})
    write_secret(node.path("/etc/sluice/keys"), keys=(key["line"] + "\n").encode())
    node.start()
    node.wait(lambda: node.passes("startupProbe"), 30, "the process serves")
    node.wait(lambda: node.passes("readinessProbe"), 60, "the model serves")
    assert node.passes("livenessProbe")
    status, answer = node.chat(key["key"])
    assert status == 200 and json.load(answer)["usage"]["completion_tokens"] == 8
    assert node.chat()[0] == 401 and node.get("/metrics")[0] == 401
    text = node.get("/metrics", port="metrics")[1].read().decode()
    blocks = re.search(r'vllm:cache_config_info\{model_name="chat",version="1",block_size="(\d+)",num_gpu_blocks="(\d+)"\} 1', text)
    assert blocks and int(blocks[2]) > 0
    assert b"sluice_manager_replica_state" in node.get("/metrics", port="manager-metrics")[1].read()
    # The kubelet replaces a changed Secret by a new target of ..data. Keys and certificate follow without a restart.
    other = new_key()
    write_secret(node.path("/etc/sluice/keys"), keys=(other["line"] + "\n").encode())
    node.wait(lambda: node.chat(other["key"])[0] == 200, 10, "the new key is in force")
    assert node.chat(key["key"])[0] == 401
    before = certificate(node)
    write_secret(node.path("/etc/sluice/tls"), **{"tls.crt": second[0].read_bytes(), "tls.key": second[1].read_bytes()})
    node.wait(lambda: certificate(node) != before, 10, "the new certificate is in force")
    # A drain: not ready at once, and the stream ends whole.
    status, stream = node.chat(other["key"], stream=True, max_tokens=200, ignore_eos=True)
    assert status == 200 and stream.readline().startswith(b"data: ")
    node.process.send_signal(signal.SIGTERM)
    node.wait(lambda: not node.passes("readinessProbe"), 10, "not ready")
    assert stream.read().endswith(b"data: [DONE]\n\n")
    assert node.process.wait(patience(30)) == 0
    # The next pod has the same volumes: the version is there, and the same file is no new version.
    node.start()
    node.wait(lambda: node.passes("readinessProbe"), 60, "the model serves again")
    assert json.load(node.get("/v1/models", other["key"])[1])["data"][0]["id"] == "chat"


@pytest.fixture
def pool(folder):
    pod = Pod(of_kind("Deployment")[0], folder)
    yield pod
    pod.kill()


def test_a_pod_of_the_pool_lives_while_it_loads_and_drains(pool):
    pool.start()
    seen = []

    def look():
        seen.append((pool.passes("livenessProbe"), pool.passes("readinessProbe")))
        return seen[-1] == (True, True)
    pool.wait(look, 60, "the model serves")
    assert (True, False) in seen and (False, True) not in seen
    assert pool.passes("startupProbe")
    # The endpoint picker reads these names from the target port, without a key.
    text = pool.get("/metrics")[1].read().decode()
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"):
        assert re.search(rf'^{name}\{{model_name="chat"', text, re.M), name
    assert json.load(pool.get("/v1/models")[1])["data"][0]["id"] == "chat"
    status, stream = pool.chat(stream=True, max_tokens=400, ignore_eos=True)
    assert status == 200 and stream.readline().startswith(b"data: ")
    pool.process.send_signal(signal.SIGTERM)
    pool.wait(lambda: not pool.passes("readinessProbe"), 10, "not ready")
    assert stream.read().endswith(b"data: [DONE]\n\n")
    assert pool.process.wait(patience(30)) == 0
