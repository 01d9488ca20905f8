/* chat.js: talks to a model over /v1/chat/completions. Needs page.js. */
"use strict";

const chat = { messages: [], abort: null };

/* Yields the objects of a stream of events. Ends with [DONE], or where the stream ends. */
async function* readEvents(answer) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
    if (done) throw new Error("no end of the stream");
  }
}

function requestBody(messages) {
  const body = { model: find("model").value, messages, stream: true, stream_options: { include_usage: true } };
  const system = find("system").value.trim();
  const temperature = find("temperature").value.trim();
  const most = find("most").value.trim();
  if (system) body.messages = [{ role: "system", content: system }, ...messages];
  if (temperature) body.temperature = Number(temperature);
  if (most) body.max_tokens = Number(most);
  return body;
}

function settingsError() {
  const temperature = find("temperature").value.trim();
  const most = find("most").value.trim();
  if (temperature && !(Number(temperature) >= 0)) return "The temperature must be a number from 0.";
  if (most && !/^[1-9]\d*$/.test(most)) return "Most tokens must be a whole number from 1.";
  return "";
}

/* Returns how many pixels of the chat lie below the window's lower edge. */
const belowWindow = () => find("chat").getBoundingClientRect().bottom - document.documentElement.clientHeight;

function showEnd() {
  if (belowWindow() > 0) window.scrollBy(0, belowWindow());
}

/* Changes the page, and keeps the end of the chat in view if the end was in view. */
function atEnd(change) {
  const follows = belowWindow() < 80;
  change();
  if (follows) showEnd();
}

function addTurn(kind, name, text) {
  const turn = { box: make("article", `turn ${kind}`), text: make("div", "text", text), note: make("p", "note") };
  turn.box.append(make("h3", "", name), turn.text, turn.note);
  find("empty").hidden = true;
  find("log").append(turn.box);
  return turn;
}

/* Returns a paragraph with **strong** and `code` as elements. */
function styled(text) {
  const span = make("span");
  for (const part of text.split(/(\*\*[^*\n]+\*\*|`[^`\n]+`)/)) {
    if (/^\*\*.+\*\*$/.test(part)) span.append(make("strong", "", part.slice(2, -2)));
    else if (/^`.+`$/.test(part)) span.append(make("code", "", part.slice(1, -1)));
    else span.append(part);
  }
  return span;
}

/* Shows a whole answer: code between fences as code, and the rest as text. */
function showText(element, text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  element.replaceChildren(...parts.map((part, i) => (i % 2 ? make("pre", "", part) : styled(part.trim()))));
}

function addReasoning(turn, text) {
  if (!turn.reasoning) {
    const details = make("details");
    turn.reasoning = make("div", "text");
    details.append(make("summary", "", "Reasoning"), turn.reasoning);
    turn.box.insertBefore(details, turn.text);
  }
  turn.reasoning.append(text);
}

function setRunning(abort) {
  chat.abort = abort;
  setText(find("send"), abort ? "Stop" : "Send");
  find("send").classList.toggle("stop", Boolean(abort));
  find("log").setAttribute("aria-busy", String(Boolean(abort)));
}

function notes(turn, usage, begin, first, stopped, finish) {
  const words = [];
  const seconds = (performance.now() - first) / 1000;
  if (usage) words.push(count(usage.completion_tokens, "token"));
  if (usage && usage.completion_tokens > 1 && seconds > 0)
    words.push(`${number((usage.completion_tokens - 1) / seconds)} tokens/s`);
  if (first) words.push(`first token after ${((first - begin) / 1000).toFixed(2)} s`);
  if (finish === "length") words.push("ended at the limit of tokens");
  if (stopped) words.push("stopped");
  setText(turn.note, words.join(", "));
}

/* Streams an answer into the turn. Returns its text. */
async function stream(turn, messages, signal) {
  const begin = performance.now();
  const answer = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(requestBody(messages)),
    signal,
  });
  const got = { text: "", usage: null, first: 0, finish: "" };
  try {
    for await (const event of readEvents(answer)) {
      if (event.error) throw new Refusal(0, `The answer broke off. ${sentence(event.error.message || event.error)}`);
      if (event.usage) got.usage = event.usage;
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      const delta = choice.delta || {};
      const thought = delta.reasoning_content || delta.reasoning;
      got.first = got.first || performance.now();
      got.finish = choice.finish_reason || got.finish;
      atEnd(() => {
        if (thought) addReasoning(turn, thought);
        if (delta.content) turn.text.append(delta.content);
      });
      got.text += delta.content || "";
    }
  } finally {
    turn.got = got.text;
    notes(turn, got.usage, begin, got.first, signal.aborted, got.finish);
  }
}

/* Ends a turn that failed. Without an answer the question returns to the box. */
function failTurn(turn, error, question) {
  turn.note.className = "note error";
  turn.note.setAttribute("role", "alert");
  setText(turn.note, wordsOf(error));
  if (turn.got) return;
  if (!find("text").value) find("text").value = question;
  fitText();
  if (error.status === 401) askForKey(error.message);
}

async function ask(question) {
  const abort = new AbortController();
  const name = find("model").value;
  const messages = chat.messages; /* "New chat" begins another list */
  messages.push({ role: "user", content: question });
  addTurn("user", "You", question);
  const turn = addTurn("running", name, "");
  showEnd();
  find("clear").hidden = false;
  setText(find("said"), `${name} answers.`);
  setRunning(abort);
  try {
    await stream(turn, messages, abort.signal);
    setText(find("said"), turn.got);
  } catch (error) {
    if (error.name !== "AbortError") failTurn(turn, error, question);
    else setText(find("said"), "The answer is stopped.");
    if (error.name === "AbortError" && !turn.got) setText(turn.note, "stopped");
  }
  turn.box.classList.remove("running");
  if (!turn.got) {
    messages.pop();
  } else {
    messages.push({ role: "assistant", content: turn.got });
    atEnd(() => showText(turn.text, turn.got));
  }
  setRunning(null);
}

function send(event) {
  event.preventDefault();
  const box = find("text");
  const question = box.value.trim();
  if (chat.abort) {
    chat.abort.abort();
    return;
  }
  box.setCustomValidity(settingsError());
  if (!question || find("send").disabled || !box.reportValidity()) return;
  box.value = "";
  fitText();
  box.focus();
  ask(question);
}

function clearChat() {
  if (chat.abort) chat.abort.abort();
  chat.messages = [];
  find("log").replaceChildren(find("empty"));
  find("empty").hidden = false;
  find("clear").hidden = true;
  find("text").focus();
}

function fitText() {
  const box = find("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function onKey(event) {
  const isTouch = matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouch) return;
  event.preventDefault();
  if (!chat.abort) find("ask").requestSubmit();
}

find("ask").addEventListener("submit", send);
find("clear").addEventListener("click", clearChat);
find("text").addEventListener("keydown", onKey);
find("text").addEventListener("input", () => { find("text").setCustomValidity(""); fitText(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && chat.abort) chat.abort.abort(); });
