/* page.js: reads /metrics every two seconds and draws models, replicas and figures. chat.js follows
 * and uses the functions of this file. page_tool puts both files into page.html.
 *
 * Text of the server and of models enters the page as text only, never as HTML. The API key is in
 * sessionStorage, so it ends with the tab, and goes to this server alone. */
"use strict";

const POLL_MS = 2000;
const SLOW_POLL_MS = 8000; /* while the server does not answer */
const N_POINTS = 60;
const KEY_NAME = "sluice-api-key";

const find = (id) => document.getElementById(id);

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/* A write marks the element as changed for screen readers, so equal text is not written again. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/* --- words --- */

function number(n) {
  if (n >= 1000) return Math.round(n).toLocaleString("en");
  return n >= 10 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(1);
}

const count = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

function sentence(text) {
  const trimmed = String(text).trim();
  return /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}

/* --- requests to the server --- */

class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/* A browser may refuse the storage. The key then ends with the page. */
const key = {
  value: "",
  get() {
    try {
      return sessionStorage.getItem(KEY_NAME) || key.value;
    } catch {
      return key.value;
    }
  },
  set(value) {
    key.value = value;
    try {
      sessionStorage.setItem(KEY_NAME, value);
      if (!value) sessionStorage.removeItem(KEY_NAME);
    } catch {
      return;
    }
  },
};

/* Returns the sentence of an error. Only a broken connection has no sentence of its own. */
const wordsOf = (error) => (error instanceof Refusal ? error.message : "The connection to the server broke.");

/* Returns an error with the sentence that the page shows for a failed answer. */
async function refusal(answer) {
  let said = "";
  try {
    const body = await answer.json();
    said = String((body.error && (body.error.message || body.error)) || "");
  } catch {
    said = "";
  }
  const why = said.replace(/^authorization: /, ""); /* the name of the header means nothing to the user */
  const after = Number(answer.headers.get("retry-after"));
  const again = after > 0 ? ` Try again in ${count(after, "second")}.` : "";
  const opening = {
    401: "The server refused the API key",
    403: "The server refused this page",
    404: "The server does not have this",
    429: "The server has too many requests",
    503: "The server cannot take the request now",
  };
  const first = opening[answer.status] ||
    (answer.status >= 500 ? "The server failed" : "The server refused the request");
  return new Refusal(answer.status, sentence(why ? `${first}: ${why}` : first) + again);
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/* --- the form for the key --- */

function askForKey(why) {
  const had = Boolean(key.get());
  key.set("");
  for (const id of ["figures", "chat", "models", "change-key"]) find(id).hidden = true;
  find("key").hidden = false;
  find("key-error").hidden = !had;
  setText(find("key-error"), had ? why : "");
  setText(find("summary"), "The server waits for a key.");
  find("key-text").value = "";
  find("key-text").focus();
  clearTimeout(poll.timer);
  poll.run++; /* the result of a read that is under way is not shown */
}

function useKey(event) {
  event.preventDefault();
  key.set(find("key-text").value.trim());
  find("key-text").value = "";
  find("key").hidden = true;
  models.known = "";
  start();
}

/* --- figures from /metrics --- */

/* Returns a map from the name of a family to its samples {labels, value}. */
function readMetrics(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const parts = /^(sluice_\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    const labels = new Map();
    for (const [, name, value] of (parts[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels.set(name, value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c)));
    if (!families.has(parts[1])) families.set(parts[1], []);
    families.get(parts[1]).push({ labels, value: Number(parts[3]) });
  }
  return families;
}

const newLoad = () => ({ running: 0, queued: 0, paused: 0, used: 0, cached: 0, free: 0 });

/* Arranges the samples by version and replica. */
function readVersions(families) {
  const versions = new Map();
  const versionOf = (labels) => {
    const [model, version] = [labels.get("model"), labels.get("version")];
    const name = `${model}:${version}`;
    if (!versions.has(name))
      versions.set(name, { name, model, version, serves: false, waiting: 0, tokens: 0, replicas: new Map(), ...newLoad() });
    return versions.get(name);
  };
  const replicaOf = (labels) => {
    const replicas = versionOf(labels).replicas;
    const id = labels.get("replica");
    if (!replicas.has(id)) replicas.set(id, { id, state: "", usable: false, ...newLoad() });
    return replicas.get(id);
  };
  const each = (family, visit) => {
    for (const { labels, value } of families.get(family) || [])
      if (labels.get("model")) visit(labels, value);
  };
  const addLoad = (labels, value) => {
    versionOf(labels)[labels.get("state")] += value;
    replicaOf(labels)[labels.get("state")] += value;
  };
  each("sluice_serving", (labels, value) => { versionOf(labels).serves = value === 1; });
  each("sluice_replica_state", (labels) => { replicaOf(labels).state = labels.get("state"); });
  each("sluice_replica_usable", (labels, value) => { replicaOf(labels).usable = value === 1; });
  each("sluice_replica_requests", addLoad);
  each("sluice_replica_kv_tokens", addLoad);
  each("sluice_requests_waiting_for_replica", (labels, value) => { versionOf(labels).waiting += value; });
  each("sluice_generated_tokens_total", (labels, value) => {
    const version = versions.get(`${labels.get("model")}:${labels.get("version")}`);
    if (version) version.tokens += value;
  });
  return versions;
}

const kvShare = (load) => {
  const total = load.used + load.cached + load.free;
  return total ? load.used / total : 0;
};

const percent = (load) => Math.round(1000 * kvShare(load)) / 10;

/* True once a replica has reported its KV cache, with its first answer to the server. */
const reports = (load) => load.used + load.cached + load.free > 0;

/* --- charts --- */

function newChart(label, unit, most) {
  const svg = find("chart-form").content.firstElementChild.cloneNode(true);
  return { svg, label, unit, most, points: [] };
}

function drawChart(chart, value) {
  chart.points.push(value);
  if (chart.points.length > N_POINTS) chart.points.shift();
  const top = chart.most || Math.max(1, ...chart.points) * 1.1;
  const left = 2 * (N_POINTS - chart.points.length);
  const path = chart.points
    .map((y, i) => `${i ? "L" : "M"}${left + 2 * i} ${(31 - (30 * y) / top).toFixed(2)}`)
    .join("");
  chart.svg.querySelector(".line").setAttribute("d", path);
  chart.svg.querySelector(".area").setAttribute("d", `${path}V32H${left}Z`);
  chart.svg.setAttribute("aria-label", `${chart.label}: ${number(value)}${chart.unit} now, between ` +
    `${number(Math.min(...chart.points))}${chart.unit} and ${number(Math.max(...chart.points))}${chart.unit} ` +
    "in the last two minutes");
}

function newFigure(label, unit, most) {
  const box = make("div");
  const value = make("p", "value");
  const chart = newChart(label, unit, most);
  box.append(make("h2", "", label), value, chart.svg);
  find("figures").append(box);
  return (n) => {
    value.replaceChildren(number(n), make("small", "", unit));
    drawChart(chart, n);
  };
}

/* --- models --- */

/* The words and the kind (good, wait, bad or none) of a replica's state. */
function replicaState(replica) {
  const words = {
    PENDING: ["pending", "wait"],
    LOADING: ["loading", "wait"],
    WARMING: ["warming up", "wait"],
    DRAINING: ["draining", "wait"],
    PARKED: ["parked", ""],
    FAILED: ["failed", "bad"],
  };
  if (words[replica.state]) return words[replica.state];
  return replica.usable ? ["ready", "good"] : ["ready, not reached", "bad"];
}

function versionState(version) {
  const states = [...version.replicas.values()].map((replica) => replica.state);
  const parked = states.length > 0 && states.every((state) => state === "PARKED");
  if (parked) return [version.serves ? "parked, wakes for a request" : "parked", ""];
  if (version.serves) return ["serving", "good"];
  if (states.some((state) => ["PENDING", "LOADING", "WARMING"].includes(state))) return ["loading", "wait"];
  return ["not serving", "bad"];
}

function showState(element, [words, kind]) {
  setText(element, words);
  element.className = `state ${kind}`;
}

const loadWords = (load) => `${number(load.running)} running, ${number(load.queued + (load.waiting || 0))} queued` +
  (load.paused ? `, ${number(load.paused)} paused` : "");

const views = new Map(); /* by version */

function newView(version) {
  const view = { box: make("article", "model"), state: make("span"), numbers: make("p", "numbers"), replicas: new Map() };
  const head = make("div", "model-head");
  head.append(make("h3", "", version.name), view.state);
  view.chart = newChart(`Tokens per second of ${version.name}`, "");
  view.list = make("ul");
  view.box.append(head, view.numbers, view.chart.svg, view.list);
  return view;
}

function newReplicaView(replica) {
  const row = { box: make("li", "replica"), state: make("span"), numbers: make("span", "numbers"), fill: make("span") };
  const bar = make("div", "bar");
  bar.append(row.fill);
  row.box.append(make("span", "", replica.id), row.state, row.numbers, bar);
  return row;
}

/* Makes `parent` show exactly the elements of `wanted`, in their order. Creates the missing ones, and
 * keeps the elements that stay. */
function keepViews(parent, existing, wanted, create) {
  for (const [name, view] of existing)
    if (!wanted.has(name)) {
      view.box.remove();
      existing.delete(name);
    }
  for (const [name, facts] of wanted)
    if (!existing.has(name)) {
      existing.set(name, create(facts));
      parent.append(existing.get(name).box);
    }
}

function showReplica(row, replica) {
  showState(row.state, replicaState(replica));
  setText(row.numbers, `${loadWords(replica)}, KV cache ${number(percent(replica))} %`);
  row.fill.style.width = `${percent(replica)}%`;
  row.box.classList.toggle("idle", !reports(replica));
}

function showVersion(view, version, rate) {
  showState(view.state, versionState(version));
  setText(view.numbers, `${loadWords(version)}, ${number(rate)} tokens/s`);
  drawChart(view.chart, rate);
  view.box.classList.toggle("idle", !reports(version));
  keepViews(view.list, view.replicas, version.replicas, newReplicaView);
  for (const [id, replica] of version.replicas) showReplica(view.replicas.get(id), replica);
}

function summary(versions) {
  const serving = [...versions.values()].filter((version) => version.serves);
  if (serving.length === 0) return versions.size ? "No model is serving." : "No model is loaded.";
  return serving.length === 1 ? `${serving[0].name} is serving.` : `${serving.length} models are serving.`;
}

/* --- polling --- */

const figures = [
  newFigure("Requests running", ""),
  newFigure("Requests queued", ""),
  newFigure("KV cache", " %", 100),
  newFigure("Tokens per second", ""),
];
const poll = { timer: 0, run: 0, tokens: new Map(), at: 0 };

/* Returns the tokens per second since the last call. A counter that fell belongs to a new process. */
function ratesOf(versions, now) {
  const seconds = (now - poll.at) / 1000;
  const rates = new Map();
  for (const [name, version] of versions) {
    const before = poll.tokens.get(name);
    const more = before === undefined ? 0 : version.tokens - before;
    rates.set(name, poll.at && more > 0 ? more / seconds : 0);
  }
  poll.tokens = new Map([...versions].map(([name, version]) => [name, version.tokens]));
  poll.at = now;
  return rates;
}

function show(versions) {
  const rates = ratesOf(versions, performance.now());
  const total = (pick) => [...versions.values()].reduce((sum, version) => sum + pick(version), 0);
  const load = newLoad();
  for (const name of Object.keys(load)) load[name] = total((version) => version[name]);
  figures[0](load.running);
  figures[1](load.queued + total((version) => version.waiting));
  figures[2](percent(load));
  figures[3]([...rates.values()].reduce((sum, rate) => sum + rate, 0));
  keepViews(find("model-list"), views, versions, newView);
  for (const [name, version] of versions) showVersion(views.get(name), version, rates.get(name));
  find("no-models").hidden = versions.size > 0;
  setText(find("summary"), summary(versions));
}

async function readOnce() {
  const run = ++poll.run;
  let next = POLL_MS;
  try {
    const text = await (await call("/metrics")).text();
    if (run !== poll.run) return;
    const versions = readVersions(readMetrics(text));
    for (const id of ["figures", "chat", "models"]) find(id).hidden = false;
    find("change-key").hidden = !key.get();
    find("summary").classList.remove("error");
    show(versions);
    await readModels(versions);
  } catch (error) {
    if (run !== poll.run) return;
    if (error.status === 401) {
      askForKey(error.message);
      return;
    }
    next = SLOW_POLL_MS;
    find("summary").classList.add("error");
    setText(find("summary"), `${wordsOf(error)} The page tries again every few seconds.`);
  }
  clearTimeout(poll.timer);
  if (!document.hidden) poll.timer = setTimeout(readOnce, next);
}

function start() {
  clearTimeout(poll.timer);
  if (document.hidden) return;
  readOnce();
}

/* --- the list of models to talk to --- */

const models = { known: "", context: new Map() };

/* Reads the list again when the versions that serve have changed. */
async function readModels(versions) {
  const serving = [...versions.values()].filter((version) => version.serves);
  const known = serving.map((version) => version.name).sort().join("\n");
  if (known === models.known && known) return;
  const list = (await (await call("/v1/models")).json()).data;
  models.known = known;
  models.context = new Map(list.map((model) => [model.id, model.max_model_len || 0]));
  const before = find("model").value;
  find("model").replaceChildren(...list.map((model) => {
    const option = make("option", "", model.id);
    option.value = model.id;
    return option;
  }));
  if (models.context.has(before)) find("model").value = before;
  find("send").disabled = list.length === 0;
  showContext();
}

function showContext() {
  const tokens = models.context.get(find("model").value);
  setText(find("context"), tokens ? `${number(tokens)} tokens of context` : "");
}

find("key").addEventListener("submit", useKey);
find("change-key").addEventListener("click", () => { key.set(""); askForKey(""); });
find("model").addEventListener("change", showContext);
document.addEventListener("visibilitychange", start);
start();
