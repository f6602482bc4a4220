"use strict";
// The playground: sends what the form asks for, and shows the rounds of the text as they come. One text is shown at a
// time, with all its rounds; the figures are sums over the rounds, until the server sends its own in the end. Where the
// same was asked for with drafts and without, the figures of both texts stand beside each other.

const facts = JSON.parse(at("data").textContent);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const LEVEL = 75, CUT_TIME = 130, VERDICT_TIME = 240; // milliseconds of a round that is shown while the text is written
const SLOW = 3; // times longer where a finished text is played
const ENDS = { stop: "it came to its end", length: "it reached the limit of tokens", cancelled: "stopped", shutting_down: "the server shut down" };
const KINDS = { drafted: "with speculation", plain: "plain decoding" };
const NOTICED = 1.05; // times as fast, or as slow, that a single run of each can show
const NO_ANSWER = "The server does not answer. Is drafttree serve still running?";
const LOST = "The connection was lost before the text was finished.";
const LARGEST_SIDE = 2048; // pixels of an image that is sent; larger ones are made smaller
const SENT_AS_THEY_ARE = ["image/png", "image/jpeg"]; // others are drawn anew, so that an animation becomes its first picture

const state = { images: [], adding: Promise.resolve(), text: null, messages: [], round: -1, chosen: 0, nodes: [], shown: [], show: 0, playing: false, plays: 0, runs: {} };

// A text that is being written, or was. Texts with the same key were asked for in the same words.
function newText(asked) {
  const { speculate, ...same } = asked;
  return {
    asked, key: JSON.stringify(same), rounds: [], pieces: [], words: { ...facts, strings: [] }, whole: "", tokens: 0, passes: 0, drafted: 0, accepted: 0,
    seconds: 0, end: null, stopped: false, abort: new AbortController(),
  };
}

const isRunning = () => state.text !== null && state.text.end === null && !state.text.stopped;
const chats = () => at("form").elements.mode.value === "chat";
const sleep = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

// ---- asking ---------------------------------------------------------------------------------------------------------

function readForm() {
  const number = (id) => Number(at(id).value), stop = at("stop").value;
  const asked = {
    as_served: at("as-served")?.checked ?? false,
    max_tokens: number("max_tokens"), temperature: number("temperature"), top_p: number("top_p"),
    seed: at("seed").value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : number("seed"), stop: stop ? [stop] : [],
  };
  if (!chats()) return { ...asked, prompt: at("prompt").value };
  return { ...asked, messages: [...state.messages, { role: "user", content: newContent(at("prompt").value) }] };
}

// The content of the next message: its images, then its text.
function newContent(text) {
  if (!state.images.length) return text;
  return [...state.images.map(({ url }) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}

async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (kept + value).split(/\r?\n\r?\n/);
    kept = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split(/\r?\n/).map((line) => /^(\w*): ?(.*)$/s.exec(line)?.slice(1) ?? ["", ""]));
      if (fields.data) yield { kind: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

async function request(text) {
  const headers = { "Content-Type": "application/json" };
  if (facts.wants_key) headers.Authorization = `Bearer ${at("key").value}`;
  const body = JSON.stringify(text.asked);
  const response = await fetch("/v1/playground/rounds", { method: "POST", headers, body, signal: text.abort.signal });
  if (response.ok) return response;
  const { error } = await response.json();
  if (response.status === 401) at("key")?.focus();
  throw new Error(error.message);
}

// Writes a text; whether it came to its end.
async function write(asked) {
  const text = newText(asked);
  state.text = text;
  begin(text);
  try {
    for await (const { kind, data } of readEvents(await request(text))) {
      if (kind === "round") takeRound(text, data);
      if (kind === "end") text.end = data;
      if (kind === "error") throw new Error(data.error.message);
    }
    if (!text.end) throw new Error(LOST);
  } catch (error) {
    text.stopped = true;
    if (error.name !== "AbortError") complain(error instanceof TypeError ? (text.rounds.length ? LOST : NO_ANSWER) : error.message);
  }
  finish(text);
  return text.end !== null;
}

function takeRound(text, { text: pieces, seconds, round, strings, passes, reason }) {
  text.seconds = seconds;
  text.whole += pieces.map(([piece]) => piece).join("");
  if (round) {
    text.words.strings.push(...strings);
    text.rounds.push({ ...round, reason });
    text.tokens += round.c;
    text.accepted += round.a;
    text.drafted += round.s - 1;
    text.passes += passes;
  }
  writePieces(text, pieces);
  showFigures(text);
  drawSpeeds();
}

async function run(...speculations) {
  await state.adding;
  if (isRunning() || !at("form").reportValidity()) return;
  const asked = readForm();
  for (const speculate of speculations) {
    if (!(await write({ ...asked, speculate }))) return;
  }
  if (!chats()) return;
  state.messages = [...asked.messages, { role: "assistant", content: state.text.whole.trim() }];
  at("prompt").value = "";
  at("anew").hidden = false;
  state.images = [];
  showImages();
}

function complain(message) {
  at("problem").textContent = message;
  at("problem").hidden = !message;
}

function stop() {
  if (isRunning()) state.text.abort.abort();
}

// ---- images ---------------------------------------------------------------------------------------------------------

// Attaches files to the next message, one call after the other.
function add(files) {
  const list = [...files]; // the browser empties its own when the event is over
  if (facts.no_images) complain(`${facts.no_images} Ask with text alone.`);
  else state.adding = state.adding.then(() => attach(list));
}

async function attach(files) {
  complain("");
  for (const file of files) {
    try {
      state.images.push({ name: file.name || "image", url: await readImage(file) });
    } catch {
      complain(`${file.name || "This file"} is no image that this browser can read.`);
    }
  }
  at("form").elements.mode.value = "chat";
  changeForm();
  showImages();
}

// The data URL of an image that is not larger than what is sent.
async function readImage(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && SENT_AS_THEY_ARE.includes(file.type)) return dataUrl(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(file.type === "image/jpeg" ? "image/jpeg" : "image/png", 0.92);
}

function dataUrl(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}

function showImages() {
  if (facts.no_images) return;
  fill(at("images"), ...state.images.map(({ name, url }, place) => {
    const remove = make("button", { type: "button", "aria-label": `Remove ${name}` }, "×");
    remove.addEventListener("click", () => removeImage(place));
    return make("li", {}, make("img", { src: url, alt: name }), remove);
  }));
}

function removeImage(place) {
  state.images.splice(place, 1);
  showImages();
  const buttons = at("images").querySelectorAll("button");
  (buttons[Math.min(place, buttons.length - 1)] ?? at("add")).focus();
}

const hasFiles = (transfer) => [...(transfer?.types ?? [])].includes("Files");

function onDrag(event) {
  if (!hasFiles(event.dataTransfer)) return;
  event.preventDefault(); // else the browser leaves the page for the file
  at("form").classList.toggle("dropping", event.type === "dragover" && !facts.no_images);
  if (event.type === "drop") add(event.dataTransfer.files);
}

// Text is pasted as text, also where the clipboard has a picture of it.
function onPaste(event) {
  if (!hasFiles(event.clipboardData) || event.clipboardData.types.includes("text/plain")) return;
  event.preventDefault();
  add(event.clipboardData.files);
}

// ---- the text -------------------------------------------------------------------------------------------------------

function begin(text) {
  complain("");
  play(false);
  state.round = -1;
  const answer = make("span", { id: "answer" }, make("span", { class: "caret", id: "caret" }));
  const turn = (role, name, ...content) => make("div", { class: `turn ${role}` }, make("span", { class: "who" }, name), ...content);
  if (text.asked.messages) {
    const said = text.asked.messages.map(({ role, content }) => (
      turn(role, role === "user" ? "You" : facts.model, ...shownContent(content))));
    fill(at("text"), ...said, turn("assistant", facts.model, answer));
  } else {
    fill(at("text"), make("span", { class: "prompt" }, text.asked.prompt), answer);
  }
  const toEnd = () => { at("text").scrollTop = at("text").scrollHeight; };
  for (const image of at("text").querySelectorAll("img")) image.addEventListener("load", toEnd); // it has no height before
  toEnd();
  at("text").setAttribute("aria-busy", "true");
  if (at("text").getBoundingClientRect().top > innerHeight - 120) at("text").scrollIntoView({ block: "center" });
  at("status").textContent = text.asked.speculate ? "writing ..." : "writing, without speculation ...";
  at("guided").hidden = text.asked.temperature === 0;
  at("cancel").disabled = false;
  for (const id of ["write", "compare"]) at(id).setAttribute("aria-disabled", "true");
  drawStrip(at("strip"), [], show);
  showFigures(text);
  follow(text);
}

function shownContent(content) {
  if (typeof content === "string") return [make("span", {}, content)];
  const urls = content.filter((part) => part.type === "image_url").map((part) => part.image_url.url);
  const images = urls.map((src, place) => make("img", { src, alt: `Image ${place + 1} of this message` }));
  const texts = content.filter((part) => part.type === "text").map((part) => make("span", {}, part.text));
  return [make("div", { class: "shown" }, ...images), ...texts];
}

function writePieces(text, pieces) {
  const box = at("text"), atEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 40;
  const spans = pieces.map(([piece, drafted]) => make("span", { class: drafted ? "accepted" : "bonus" }, piece));
  const number = text.rounds.length;
  at("caret").before(make("span", { class: "round", "data-round": number - 1, title: `Round ${number}` }, ...spans));
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function finish(text) {
  at("caret").remove();
  at("text").setAttribute("aria-busy", "false");
  at("cancel").disabled = true;
  for (const id of ["write", "compare"]) at(id).removeAttribute("aria-disabled");
  const why = text.end ? ENDS[text.end.finish] ?? text.end.finish : text.abort.signal.aborted ? "stopped" : "broken off";
  const cost = `${count(text.tokens, "token")} in ${count(text.rounds.length, "round")}; ${why}`;
  at("status").textContent = text.rounds.length ? `${cost}${text.asked.temperature ? `; seed ${text.asked.seed}` : ""}.` : "";
  if (text.end) state.runs = runsOf(text);
  showFigures(text);
  drawSpeeds();
  drawStrip(at("strip"), text.rounds, show);
  if (text.rounds.length) show(bestRound(text));
}

function markText() {
  const box = at("text"), now = box.querySelector(`[data-round="${state.round}"]`);
  box.querySelector(".now")?.classList.remove("now");
  if (!now || isRunning()) return;
  now.classList.add("now");
  if (now.offsetTop < box.scrollTop || now.offsetTop + 30 > box.scrollTop + box.clientHeight) {
    box.scrollTop = now.offsetTop - box.clientHeight / 2;
  }
}

// ---- figures and speeds ---------------------------------------------------------------------------------------------

const speedOf = (text) => (text.end ? text.end.figures.decoding_tokens_per_second : text.tokens / text.seconds);
const digits = (number, places) => (Number.isFinite(number) ? number.toFixed(places) : "–");

// A text, and the one that was asked for in the same words with drafts where it has none, or without.
function runsOf(text) {
  const alike = Object.entries(state.runs).filter(([, other]) => other.key === text.key);
  return { ...Object.fromEntries(alike), [text.asked.speculate ? "drafted" : "plain"]: text };
}

function figuresOf(text, plain) {
  return [
    digits(text.tokens / text.rounds.length, 2),
    digits(text.passes / text.rounds.length, 2),
    digits(speedOf(text), speedOf(text) < 1000 ? 1 : 0),
    plain ? digits(speedOf(text) / speedOf(plain), 2) : "–",
    text.drafted ? percent(text.accepted / text.drafted) : "–",
    text.rounds.length.toLocaleString("en"),
  ];
}

function showFigures(text) {
  const runs = runsOf(text), shown = Object.keys(KINDS).filter((kind) => runs[kind]), both = shown.length > 1;
  const figures = shown.map((kind) => figuresOf(runs[kind], both && runs.plain));
  const names = [
    "τ, tokens per round", "δ, draft passes per round", "tokens per second", "times plain decoding",
    "of the drafted tokens accepted", `${text.rounds.length === 1 ? "round" : "rounds"} for ${count(text.tokens, "token")}`,
  ];
  at("figures").classList.toggle("both", both);
  fill(at("figures"), ...names.map((name, place) => {
    const label = (kind) => (both ? [make("small", {}, kind)] : []);
    const values = shown.map((kind, run) => make("dd", { class: kind }, ...label(kind), figures[run][place]));
    return make("div", { class: place ? "" : "lead" }, make("dt", {}, name), ...values);
  }));
}

function drawSpeeds() {
  const runs = runsOf(state.text), shown = Object.keys(KINDS).filter((kind) => Number.isFinite(speedOf(runs[kind] ?? {})));
  const most = Math.max(...shown.map((kind) => speedOf(runs[kind])));
  fill(at("speeds"), ...shown.flatMap((kind) => {
    const bar = make("b", { class: kind }), speed = speedOf(runs[kind]);
    bar.style.width = `${(100 * speed) / most}%`;
    return [make("span", {}, KINDS[kind]), make("div", { class: "bar" }, bar), make("span", {}, `${speed.toFixed(1)} tokens/s`)];
  }));
  fill(at("verdict"), ...(isRunning() ? [] : verdict(runs)));
}

// What drafting has gained, a loss included.
function verdict({ drafted, plain }) {
  if (!drafted?.rounds.length || !plain?.rounds.length) {
    return facts.drafter === "none" ? [] : ["Press Compare to see both ways of writing beside each other."];
  }
  const strong = (words) => make("b", {}, words), times = speedOf(drafted) / speedOf(plain);
  const parts = ["With speculation: ", strong(drafted.whole === plain.whole ? "the same text" : "another text")];
  if (!drafted.drafted) {
    parts.push(`. Nothing was drafted${because(drafted.rounds[drafted.rounds.length - 1])}, so both were written plainly, and neither is faster.`);
  } else {
    parts.push(` in ${count(drafted.rounds.length, "round")} instead of ${plain.rounds.length.toLocaleString("en")}, `);
    if (times >= NOTICED) parts.push(strong(`${times.toFixed(2)} times`), " as fast.");
    else if (times > 1 / NOTICED) parts.push(strong("no faster"), ` (${times.toFixed(2)} times).`);
    else {
      parts.push("but ", strong("slower"), `: ${times.toFixed(2)} times as fast. Drafting took more time than the saved rounds would have`);
      parts.push(drafted.asked.as_served ? "." : "; as the server would, it drafts only where that pays.");
    }
    parts.push(" One run of each, without reading the prompt.");
  }
  return facts.lossless ? parts : [...parts, ` Texts are ${facts.fidelity}.`];
}

// The round with the longest accepted path, the first of several.
function bestRound({ rounds }) {
  const lengths = rounds.map((round) => round.p.length);
  return lengths.indexOf(Math.max(...lengths));
}

// ---- the tree -------------------------------------------------------------------------------------------------------

function isShown(node) {
  return (node.outcome !== "cut" || at("show-cut").checked) && (node.outcome !== "unreached" || at("show-unreached").checked);
}

function redraw() {
  if (state.round < 0) return;
  state.shown = drawTree(at("tree"), at("box"), state.nodes[0], isShown);
  at("tree").setAttribute("aria-label", `Draft tree of round ${state.round + 1}`);
  at("tree").classList.remove("growing", "cutting");
  choose(state.chosen);
}

// Shows a round as it was at a moment: grown to a depth, cut to the budget, or judged.
function stage(depth, moment) {
  const tree = at("tree");
  tree.classList.toggle("growing", moment !== "judged");
  tree.classList.toggle("cutting", moment === "cut");
  for (const node of state.shown) {
    const grown = node.depth <= depth && (node.outcome !== "bonus" || node.draft !== null);
    for (const name of ["node", "edge"]) {
      tree.querySelector(`[data-${name}="${node.index}"]`)?.classList.toggle("later", moment !== "judged" && !grown);
    }
  }
}

// Lets the tree of a round grow, be cut and be judged; whether nothing else was shown meanwhile.
async function animate(index, pace) {
  select(index);
  if (!still.matches) choose(0);
  const mine = state.show, after = async (milliseconds) => { await sleep(pace * milliseconds); return mine === state.show; };
  const drafted = state.nodes.filter((node) => node.outcome !== "bonus");
  const deepest = Math.max(...drafted.map((node) => node.depth));
  for (let depth = 1; depth <= deepest && !still.matches; depth += 1) {
    stage(depth, "grown");
    if (!(await after(LEVEL))) return false;
  }
  if (!still.matches && drafted.some((node) => node.outcome === "cut")) {
    stage(deepest, "cut");
    if (!(await after(CUT_TIME))) return false;
  }
  stage(deepest, "judged");
  choose(state.nodes.length - 1);
  return after(VERDICT_TIME);
}

// While a text is written its newest round is shown, as many as there is time for.
async function follow(text) {
  while (state.text === text && isRunning()) {
    const newest = text.rounds.length - 1;
    if (newest > state.round) await animate(newest, 1);
    else await sleep(30);
  }
}

function summarise(text, round) {
  const drafted = round.s - 1, cut = state.nodes.filter((node) => node.outcome === "cut").length;
  const parts = drafted ? [`${count(drafted, "token")} drafted`] : [text.asked.speculate ? `Nothing drafted${because(round)}` : "Speculation is off"];
  if (cut) parts.push(`, ${cut} more cut by the budget`);
  if (drafted) parts.push(", ", make("b", {}, `${round.p.length - 1} accepted`));
  if (!isRunning() && round.p.length > 1 && state.round === bestRound(text)) parts.push(", the most of any round");
  const bonus = state.nodes[state.nodes.length - 1];
  const added = make("b", {}, `“${bonus.text.trim() || visible(bonus.text)}”`);
  parts.push(...(round.c > round.a ? ["; the target added ", added] : ["; the text ends on the way"]), `. ${time(total(round.t))}.`);
  fill(at("summary"), ...parts);
}

const because = (round) => (round.reason ? ` (${round.reason})` : "");
const cutWhy = (node) => (node.rule === "budget" ? "It was drafted, and the budget of the round had no room for it." : "");

function reason(node) {
  if (node.outcome === "root") return "The tree grows behind it; the target reads it in the same pass.";
  if (node.outcome === "bonus" && !node.rule) return node.draft === null ? "It was not drafted." : "It was drafted, and the verifier drew it anew.";
  return cutWhy(node);
}

function choose(index, scroll = false) {
  const node = state.nodes[index] ?? state.nodes[0];
  state.chosen = node.index;
  at("tree").querySelector(".chosen")?.classList.remove("chosen");
  at("tree").querySelector(`[data-node="${node.index}"]`)?.classList.add("chosen");
  const rank = node.rank < 0 ? "" : `rank ${node.rank + 1}`;
  const parts = [make("p", { class: "token" }, visible(node.text)), make("span", { class: `badge ${node.outcome}` }, WORDS[node.outcome])];
  parts.push(make("p", { class: "facts" }, [rank, `depth ${node.depth}`, `token ${node.token}`].filter(Boolean).join(" · ")));
  if (node.outcome !== "root") parts.push(meter("draft", node.draft), meter("target", node.target));
  fill(at("node"), ...parts, make("p", { class: "why" }, reason(node)));
  if (scroll && node.x !== undefined) scrollTo(at("box"), node);
}

function showTimes(times) {
  const phases = facts.phases.map((name, phase) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = `var(--p${phase})`;
    return make("span", {}, swatch, `${name} ${time(times[phase])}`);
  });
  fill(at("stack"), ...stack(times));
  fill(at("times"), ...phases);
}

function listRound() {
  if (at("listing").open && state.round >= 0) listNodes(at("nodes"), state.nodes, cutWhy);
}

// ---- moving about ---------------------------------------------------------------------------------------------------

// Makes a round the current one.
function select(index) {
  const text = state.text, last = text.rounds.length - 1;
  state.show += 1;
  state.round = Math.max(0, Math.min(last, index));
  state.nodes = readRound(text.rounds[state.round], text.words);
  state.chosen = state.nodes.length - 1;
  for (const id of ["slider", "play"]) at(id).disabled = isRunning();
  at("previous").disabled = isRunning() || state.round === 0;
  at("next").disabled = isRunning() || state.round === last;
  at("slider").max = last + 1;
  at("slider").value = state.round + 1;
  at("slider").setAttribute("aria-valuetext", `round ${state.round + 1} of ${last + 1}`);
  at("number").textContent = isRunning() ? `of round ${state.round + 1}` : `of round ${state.round + 1} of ${last + 1}`;
  at("grove").classList.toggle("resting", !state.playing && !(isRunning() && text.asked.speculate));
  redraw();
  markStrip(at("strip"), state.round);
  at("box").scrollTo(0, 0);
  summarise(text, text.rounds[state.round]);
  showTimes(text.rounds[state.round].t);
  listRound();
  markText();
}

function show(index) {
  if (!state.text?.rounds.length || isRunning()) return;
  play(false);
  select(index);
}

// Plays a finished text from the current round on, or from the first one where that is the last.
async function play(on) {
  if (state.playing === on) return;
  state.playing = on;
  const mine = state.plays += 1;
  at("play").textContent = on ? "Pause" : "Play";
  at("play").setAttribute("aria-pressed", on);
  const last = on ? state.text.rounds.length - 1 : -1;
  for (let round = state.round < last ? state.round + 1 : 0; round <= last && mine === state.plays; round += 1) {
    if (!(await animate(round, SLOW))) break;
  }
  if (on && mine === state.plays) play(false);
}

function onKey(event) {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && event.ctrlKey) at("form").requestSubmit();
  const inTree = event.target === at("box");
  if (event.altKey || event.ctrlKey || event.metaKey || !(inTree || event.target === at("text"))) return;
  const rounds = { ArrowLeft: state.round - 1, ArrowRight: state.round + 1, Home: 0, End: Infinity };
  if (event.key in rounds) show(rounds[event.key]);
  else if (inTree && state.round >= 0 && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
    choose(neighbour(state.shown, state.chosen, event.key === "ArrowUp" ? -1 : 1), true);
  } else return;
  event.preventDefault();
}

function changeForm() {
  const message = chats();
  at("prompt-name").textContent = message ? "Message" : "Prompt";
  at("anew").hidden = !message || !state.messages.length;
  if (!facts.no_images) at("images").hidden = !message;
  if (facts.drafter === "none") return;
  at("as-served").disabled = !at("speculate").checked;
  at("policy").textContent = at("as-served").checked ? facts.served_policy : facts.policy;
}

function start() {
  const on = (id, kind, action) => at(id).addEventListener(kind, action);
  on("form", "submit", (event) => { event.preventDefault(); run(at("speculate").checked); });
  on("form", "change", changeForm);
  on("compare", "click", () => run(false, true));
  on("cancel", "click", stop);
  on("anew", "click", () => { state.messages = []; changeForm(); at("prompt").focus(); });
  if (!facts.no_images) {
    on("add", "click", () => at("files").click());
    on("files", "change", () => { add(at("files").files); at("files").value = ""; });
  }
  for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, onDrag);
  document.addEventListener("paste", onPaste);
  on("slider", "input", (event) => show(Number(event.target.value) - 1));
  on("previous", "click", () => show(state.round - 1));
  on("next", "click", () => show(state.round + 1));
  on("play", "click", () => play(!state.playing));
  on("listing", "toggle", listRound);
  for (const id of ["show-cut", "show-unreached"]) on(id, "change", redraw);
  on("tree", "click", (event) => {
    const item = event.target.closest("[data-node]");
    if (item) choose(Number(item.dataset.node));
  });
  on("text", "click", (event) => {
    const group = event.target.closest("[data-round]");
    if (group) show(Number(group.dataset.round));
  });
  document.addEventListener("keydown", onKey);
  at("form").addEventListener("invalid", () => { at("options").open = true; }, true); // what is closed cannot be pointed at
  at("options").open = innerWidth > 820;
  new ResizeObserver(redraw).observe(at("box"));
  showFigures(newText({ speculate: true }));
  changeForm();
}

start();
