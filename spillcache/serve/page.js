// The page at "/": asks GET /cache every two seconds and shows what it says; docs/page.md.
// Whatever comes from the server or a model is shown as text, never as markup.
"use strict";

const POLL_MS = 2000;
const PATIENCE_MS = 10000;
const SOURCES = ["live", "ram", "disk", "computed"];
const NAMES = { live: "live", ram: "RAM", disk: "disk", computed: "computed" };
const PHASES = { idle: "rests", restore: "restores", prefill: "computes its prompt", decode: "answers" };

const $ = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

function duration(ms) {
  if (ms === null) return "–";
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

function ago(seconds) {
  if (seconds < 60) return "just now";
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

// An element with a class and children; a child that is text becomes a text node.
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

// Only what changes is touched: a screen reader tells every change of a live region.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function bar(parts, whole) {
  const found = make("div", "bar");
  found.setAttribute("aria-hidden", "true");
  for (const [source, size] of parts) {
    const piece = make("span", source);
    piece.style.width = `${whole > 0 ? (100 * size) / whole : 0}%`;
    found.append(piece);
  }
  return found;
}

const cell = (text, className) => make("td", className, text);

function rowHeader(...children) {
  const header = make("th", "", ...children);
  header.scope = "row";
  return header;
}

// What the server says.

function showReuse(tokens) {
  const all = SOURCES.reduce((sum, source) => sum + tokens[source], 0);
  say($("hit-rate"), all ? percent(1 - tokens.computed / all) : "–");
  $("reuse-bar").replaceChildren(...bar(SOURCES.map((s) => [s, tokens[s]]), all).children);
  $("reuse").replaceChildren(...SOURCES.map((source) => {
    const mark = make("span", `key ${source}`);
    mark.setAttribute("aria-hidden", "true");
    const row = make("tr", "", rowHeader(mark, NAMES[source]),
      cell(count(tokens[source]), "number"),
      cell(all ? percent(tokens[source] / all) : "–", "number"));
    row.dataset.source = source;
    return row;
  }));
}

function tierRow(tier, name, held, limit, words, state) {
  const part = limit > 0 ? ` (${percent(held / limit)})` : "";
  return make("tr", "", rowHeader(name),
    make("td", "", words + part, bar([[tier, held]], limit)), cell(state));
}

function showTiers({ live, ram, disk }) {
  const rows = [tierRow("live", "Engine", live.tokens, live.context_tokens,
    `${count(live.tokens)} of ${count(live.context_tokens)} tokens`, "live slots")];
  const ramBytes = ram.bytes || 0;
  rows.push(tierRow("ram", "RAM", ramBytes, ram.capacity_bytes,
    ram.on ? `${bytes(ramBytes)} of ${bytes(ram.capacity_bytes)}` : "nothing",
    ram.on ? `${count(ram.blocks)} blocks, ${count(ram.unsaved_blocks)} not on disk` : `off: ${ram.reason}`));
  rows.push(tierRow("disk", "Disk", disk.quota_bytes ? disk.bytes : 0, disk.quota_bytes,
    disk.quota_bytes ? `${bytes(disk.bytes)} of ${bytes(disk.quota_bytes)}` : "nothing",
    disk.on ? "in use" : `off: ${disk.reason}`));
  $("tiers").replaceChildren(...rows);
}

function showSlots(slots, waiting) {
  say($("waiting"), waiting ? `${count(waiting)} waiting for a slot` : "No request waits");
  $("slots").replaceChildren(...slots.map((slot) => make("tr", "",
    rowHeader(String(slot.id)), cell(PHASES[slot.phase] || slot.phase), cell(count(slot.tokens), "number"),
    ...[slot.prompt_tokens, slot.reused_tokens, slot.generated_tokens].map((tokens) =>
      cell(slot.phase === "idle" ? "–" : count(tokens), "number")))));
}

const sources = (row) =>
  SOURCES.filter((source) => row[source]).map((source) => `${count(row[source])} ${NAMES[source]}`).join(", ");

const OUTCOMES = {
  stop: "complete", length: "cut off", refused: "refused", failed: "failed", cancelled: "client left",
};

let lastRequest = 0;

function showRecent(rows) {
  const newest = rows.length ? rows[0].number : 0;
  if (newest === lastRequest) return;
  lastRequest = newest;
  $("recent").replaceChildren(...rows.map((row) => make("tr", "",
    rowHeader(clock.format(row.ended * 1000)), cell(OUTCOMES[row.outcome] || row.outcome),
    cell(count(row.prompt_tokens), "number"),
    make("td", "", sources(row) || "not answered", bar(SOURCES.map((s) => [s, row[s]]), row.prompt_tokens)),
    cell(duration(row.first_token_ms), "number"), cell(count(row.generated_tokens), "number"),
    cell(duration(row.total_ms), "number"), cell(row.decision || "–"))));
}

// The tree. Its elements are kept from one look to the next, so that what is open stays open and
// what has the focus keeps it.

const nodes = new Map();

function nodeOf(run) {
  const key = `${run.namespace} ${run.name}`;
  let node = nodes.get(key);
  if (!node) {
    node = { item: make("li"), line: null, list: null };
    nodes.set(key, node);
  }
  node.key = key;
  return node;
}

function shape(node, branches, depth) {
  if (node.line && Boolean(node.list) === branches) return;
  if (branches) {
    node.line = make("summary");
    node.list = make("ul");
    const details = make("details", "", node.line, node.list);
    details.open = depth < 6;
    node.item.replaceChildren(details);
  } else {
    node.line = make("div");
    node.list = null;
    node.item.replaceChildren(node.line);
  }
}

function describe(run, branches, several) {
  const from = run.start ? `after ${count(run.start)} ` : "";
  const tags = several && run.after === null ? [make("span", "tag", `namespace ${run.namespace}`)] : [];
  for (const [source, tokens] of [["live", run.live_tokens], ["ram", run.ram_tokens], ["disk", run.disk_tokens]]) {
    if (!tokens) continue;
    const mark = make("span", `key ${source}`);
    mark.setAttribute("aria-hidden", "true");
    const part = tokens === run.tokens ? "" : ` ${count(tokens)}`;
    tags.push(make("span", "tag", mark, `${NAMES[source]}${part}`));
  }
  const size = Math.max(run.ram_bytes, run.disk_bytes);
  return [
    make("b", "", `${count(run.tokens)} tokens`), ` ${from}`,
    branches ? make("span", "tag", `shared by ${count(branches)}`) : "", ...tags,
    make("span", "tag quiet", `${bytes(size)}, used ${ago(run.used_s_ago)}`), " ", make("code", "", run.name),
  ];
}

function place(list, items) {
  items.forEach((item, at) => {
    if (list.children[at] !== item) list.insertBefore(item, list.children[at] || null);
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

function showTree(tree) {
  const focused = document.activeElement;
  const runs = tree.runs.map((run) => ({ run, node: nodeOf(run), depth: 0, after: [] }));
  const top = [];
  for (const each of runs) {
    if (each.run.after === null) { top.push(each); continue; }
    const before = runs[each.run.after];
    each.depth = before.depth + 1;
    before.after.push(each);
  }
  const several = new Set(tree.runs.map((run) => run.namespace)).size > 1;
  for (const { run, node, depth, after } of runs) {
    shape(node, after.length > 0, depth);
    const line = make("div", "", ...describe(run, after.length, several));
    if (node.line.textContent !== line.textContent) node.line.replaceChildren(...line.childNodes);
    if (node.list) place(node.list, after.map((each) => each.node.item));
  }
  place($("tree"), top.map((each) => each.node.item));
  const shown = new Set(runs.map((each) => each.node.key));
  for (const key of nodes.keys()) if (!shown.has(key)) nodes.delete(key);
  if (focused !== document.activeElement && document.contains(focused)) focused.focus();
  say($("tree-note"), treeNote(tree));
}

function treeNote(tree) {
  if (!tree.runs.length) return "Nothing is kept yet.";
  const what = `${count(tree.blocks)} blocks in RAM and on disk; prompts that begin alike share a branch.`;
  return tree.complete ? what : `The most recently used ${what} There are more.`;
}

function show(found) {
  say($("about"), `${found.model}, version ${found.version}, up since ${clock.format(found.started * 1000)}`);
  showReuse(found.prompt_tokens);
  showTiers(found.tiers);
  showSlots(found.slots, found.requests.waiting);
  showRecent(found.recent);
  showTree(found.tree);
}

// Asking.

const keyed = () => {
  const key = sessionStorage.getItem("spillcache-key");
  return key ? { Authorization: `Bearer ${key}` } : {};
};

async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

let paused = false;
let timer = 0;
let started = null;

async function look() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  try {
    const response = await fetch("cache", { headers: keyed(), signal: AbortSignal.timeout(PATIENCE_MS) });
    $("key-form").hidden = response.status !== 401;
    if (response.ok) {
      const found = await response.json();
      if (found.started !== started) { started = found.started; lastRequest = -1; }
      show(found);
      say($("status"), "Up to date");
    } else {
      say($("status"), await problem(response));
    }
  } catch {
    say($("status"), "The server does not answer; trying again");
  }
  clearTimeout(timer);
  timer = setTimeout(look, POLL_MS);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) say($("status"), "Paused");
  look();
});

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("spillcache-key", $("key").value);
  $("key").value = "";
  look();
});

document.addEventListener("visibilitychange", look);

// The chat box.

let messages = [];
let running = null;

function entry(who, text) {
  const body = make("p", "", text);
  const item = make("li", "", make("div", "who", who), body);
  $("log").append(item);
  $("log").scrollTop = $("log").scrollHeight;
  return { item, body };
}

// The data of server-sent events, one by one, until the stream ends or says that it is done.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answer(asked, body, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST", signal, headers: { "Content-Type": "application/json", ...keyed() },
    body: JSON.stringify({ messages: asked, stream: true, max_tokens: Number($("most").value) || 256 }),
  });
  if (!response.ok) throw new Error(await problem(response));
  let timings = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const piece = event.choices?.[0]?.delta?.content;
    if (piece) {
      body.append(piece);
      $("log").scrollTop = $("log").scrollHeight;
    }
    timings = event.timings || timings;
  }
  return timings;
}

function timingNote(timings) {
  const row = { ...timings.cache, computed: timings.prompt_n };
  return `Prompt: ${sources(row)}. First token after ${duration(timings.queue_ms + timings.prompt_ms)}, ` +
    `${timings.predicted_per_second.toFixed(1)} tokens per second.`;
}

async function send() {
  const text = $("ask").value.trim();
  if (!text || running) return;
  $("ask").value = "";
  const asked = messages;
  asked.push({ role: "user", content: text });
  entry("You", text);
  running = new AbortController();
  const { item, body } = entry("Model", "");
  $("send").disabled = true;
  $("stop").disabled = false;
  $("log").setAttribute("aria-busy", "true");
  say($("chat-status"), "Answering …");
  try {
    const timings = await answer(asked, body, running.signal);
    if (timings) item.append(make("p", "note", timingNote(timings)));
    say($("chat-status"), "");
  } catch (error) {
    const stopped = error.name === "AbortError";
    say($("chat-status"), stopped ? "Stopped." : `The answer ended early: ${error.message}`);
  }
  if (body.textContent) asked.push({ role: "assistant", content: body.textContent });
  else asked.pop();
  running = null;
  $("log").setAttribute("aria-busy", "false");
  $("send").disabled = false;
  $("stop").disabled = true;
  look();
}

$("chat").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

$("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});

$("stop").addEventListener("click", () => running?.abort());

$("anew").addEventListener("click", () => {
  running?.abort();
  messages = [];
  $("log").replaceChildren();
  say($("chat-status"), "");
  $("ask").focus();
});

look();
