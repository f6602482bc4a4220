"use strict";
// The page of a trace: the data stay as they came, and only the current round is drawn.

const data = JSON.parse(document.getElementById("data").textContent);
const last = data.rounds.length - 1;
const SEEN = 8; // a row of a node has this many entries, and one more where the policy saw another probability
const state = { round: 0, chosen: 0, nodes: [] };
const CUT = {
  keep: "The policy did not keep it.",
  budget: "The policy kept it, but the tree was full.",
  rerank: "It was in the tree while it grew; in the end other nodes were better.",
  width: "It was not among the candidates that the policy looks at.",
  draw: "It was not drawn.",
};
const ENDED = {
  keep: "No child of it was kept.",
  budget: "The path ends here: the tree was full.",
  rerank: "Its children were dropped in the end, for better nodes.",
  expand: "The policy did not expand it.",
  stop: "The policy ended the tree here.",
  depth: "The tree has no deeper level.",
};
const RULES = {
  keep: "not kept by the policy", budget: "kept, but the tree was full",
  rerank: data.sampled ? "" : "in the tree first, dropped in the end",
};

// ---- the text -------------------------------------------------------------------------------------------------------

function writeText() {
  const parts = [make("span", { class: "prompt" }, data.prompt)];
  let first = 0;
  data.rounds.forEach((round, index) => {
    const pieces = data.pieces.slice(first, first + round.c);
    first += round.c;
    const group = make("span", { class: "round", "data-round": index, title: `Round ${index + 1}` });
    const drafted = pieces.slice(0, round.a).join("");
    const wrong = round.j.map((node) => data.strings[round.n[node][0]]).join("").replace(/\n/g, "⏎");
    const added = pieces.slice(round.a).join("");
    for (const [name, text] of [["accepted", drafted], ["rejected", wrong], ["bonus", added]]) {
      if (text) group.append(make("span", { class: name }, text));
    }
    parts.push(group);
  });
  fill(at("text"), ...parts).addEventListener("click", (event) => {
    const group = event.target.closest("[data-round]");
    if (group) show(Number(group.dataset.round));
  });
}

function markText() {
  const box = at("text");
  box.querySelector(".now")?.classList.remove("now");
  const now = box.querySelector(`[data-round="${state.round}"]`);
  now.classList.add("now");
  if (now.offsetTop < box.scrollTop || now.offsetTop + 30 > box.scrollTop + box.clientHeight) {
    box.scrollTop = now.offsetTop - box.clientHeight / 2;
  }
}

// ---- the tree -------------------------------------------------------------------------------------------------------

function isShown(node) {
  return (node.outcome !== "cut" || at("show-cut").checked) && (node.outcome !== "unreached" || at("show-unreached").checked);
}

// ---- the details ----------------------------------------------------------------------------------------------------

function reason(node) {
  if (node.outcome === "root") return "The tree grows behind it; the target reads it in the same pass.";
  if (node.outcome === "cut") return CUT[node.rule] ?? "";
  if (node.outcome !== "bonus") return node.rule ? ENDED[node.rule] : "";
  if (!node.rule) return node.draft === null ? "Nothing was drafted here." : "It was drafted here, and the verifier chose it anew.";
  return node.draft !== null ? CUT[node.rule] : `Nothing was drafted behind the accepted path. ${ENDED[node.rule] ?? ""}`;
}

function rankOf(node) {
  if (node.rank < 0) return "";
  return data.sampled && node.outcome !== "bonus" ? `drawn as number ${node.rank + 1}` : `rank ${node.rank + 1} of the drafter`;
}

function choose(index, scroll = false) {
  const node = state.nodes[index] ?? state.nodes[0];
  state.chosen = node.index;
  at("tree").querySelector(".chosen")?.classList.remove("chosen");
  at("tree").querySelector(`[data-node="${node.index}"]`)?.classList.add("chosen");
  const facts = [rankOf(node), `depth ${node.depth}`, `token ${node.token}`].filter(Boolean).join(" · ");
  const parts = [make("p", { class: "token" }, visible(node.text))];
  parts.push(make("span", { class: `badge ${node.outcome}` }, WORDS[node.outcome] + (node.outcome === "cut" ? `: ${node.rule}` : "")));
  parts.push(make("p", { class: "facts" }, facts));
  if (node.outcome !== "root") parts.push(meter("draft", node.draft), meter("target", node.target));
  if (node.seen !== undefined) parts.push(make("p", { class: "facts" }, `The policy saw ${exactly(node.seen)}: with the noise that decides the draw.`));
  parts.push(make("p", { class: "why" }, reason(node)));
  fill(at("node"), ...parts);
  if (scroll && node.x !== undefined) scrollTo(at("box"), node);
}

const cutInAll = data.rules.map((_, rule) => data.rounds.reduce((sum, round) => sum + round.x[rule], 0));

function listRules() {
  const round = data.rounds[state.round];
  const rows = ["keep", "budget", "rerank"].map((name) => {
    const rule = data.rules.indexOf(name), numbers = [round.x[rule], cutInAll[rule]];
    const head = make("th", { scope: "row" }, name, make("small", {}, RULES[name]));
    return make("tr", {}, head, ...numbers.map((number) => make("td", { class: "n" }, number.toLocaleString("en"))));
  });
  fill(at("rules"), header("rule", "round", "all"), make("tbody", {}, ...rows));
}

const whyOf = (node) => (node.outcome === "cut" || node.outcome === "bonus" ? CUT : ENDED)[node.rule] ?? "";

function listRound() {
  if (at("listing").open) listNodes(at("nodes"), state.nodes, whyOf);
}

// ---- acceptance and time --------------------------------------------------------------------------------------------

const RANKS = 10;

function drawHeat() {
  const cells = new Map(), key = (depth, rank) => `${depth},${rank}`;
  for (const [depth, rank, drafted, judged, accepted] of data.acceptance) {
    const name = key(depth, Math.min(rank, RANKS)), sums = cells.get(name) ?? [0, 0, 0];
    cells.set(name, [sums[0] + drafted, sums[1] + judged, sums[2] + accepted]);
  }
  const depths = Math.max(0, ...data.acceptance.map(([depth]) => depth));
  const ranks = Math.min(RANKS, Math.max(-1, ...data.acceptance.map(([, rank]) => rank))) + 1;
  const columns = Array.from({ length: depths }, (_, depth) => depth + 1);
  const rows = Array.from({ length: ranks }, (_, rank) => {
    const head = make("th", { scope: "row" }, rank === RANKS ? `${RANKS + 1}+` : rank + 1);
    return make("tr", {}, head, ...columns.map((depth) => heatCell(cells.get(key(depth, rank)), depth, rank)));
  });
  const heads = columns.map((depth) => make("th", { scope: "col" }, depth));
  const order = data.sampled ? "order of drawing" : "rank";
  fill(at("heat"), make("thead", {}, make("tr", {}, make("th", { scope: "col" }, `${order} \\ depth`), ...heads)), make("tbody", {}, ...rows));
  at("heat-note").textContent = data.acceptance.length
    ? "Of the nodes whose parent was accepted, the share accepted. The current round's path is outlined."
    : "Nothing was drafted.";
}

function heatCell(sums, depth, rank) {
  const cell = make("td", { "data-place": `${depth},${rank}` });
  if (!sums || !sums[1]) {
    cell.className = "none";
    cell.textContent = sums ? "–" : "";
    if (sums) cell.title = `drafted ${sums[0]} times, never judged`;
    return cell;
  }
  const share = sums[2] / sums[1];
  cell.textContent = `${Math.round(100 * share)}%`;
  cell.title = `depth ${depth}, rank ${rank + 1}: ${sums[2]} of ${sums[1]} judged accepted, ${sums[0]} drafted`;
  cell.style.background = `color-mix(in srgb, var(--accepted) ${Math.round(92 * share)}%, var(--sunk))`;
  if (share > 0.5) cell.classList.add("deep");
  return cell;
}

function markHeat() {
  for (const cell of at("heat").querySelectorAll(".now")) cell.classList.remove("now");
  for (const node of state.nodes.filter((node) => node.outcome === "accepted")) {
    const place = `${node.depth},${Math.min(node.rank, RANKS)}`;
    at("heat").querySelector(`[data-place="${place}"]`)?.classList.add("now");
  }
}

const timeInAll = data.phases.map((_, phase) => data.rounds.reduce((sum, round) => sum + round.t[phase], 0));
function listTimes() {
  const now = data.rounds[state.round].t;
  fill(at("stack-round"), ...stack(now));
  fill(at("stack-all"), ...stack(timeInAll));
  const row = (head, mine, all, share) => make("tr", {}, head, ...[mine, all, share].map((cell) => make("td", { class: "n" }, cell)));
  const rows = data.phases.map((name, phase) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = `var(--p${phase})`;
    const share = `${Math.round((100 * timeInAll[phase]) / (total(timeInAll) || 1))}%`;
    return row(make("th", { scope: "row" }, swatch, name), time(now[phase]), time(timeInAll[phase]), share);
  });
  rows.push(row(make("th", { scope: "row" }, "round"), time(total(now)), time(total(timeInAll)), "100%"));
  fill(at("times"), header("phase", "this round", "all rounds", "share"), make("tbody", {}, ...rows));
}

// ---- moving about ---------------------------------------------------------------------------------------------------

function summarise() {
  const round = data.rounds[state.round], drafted = round.s - 1;
  const accepted = state.nodes.filter((node) => node.outcome === "accepted");
  const bonus = state.nodes[state.nodes.length - 1];
  const parts = drafted
    ? [count(drafted, "token"), " drafted, ", make("b", {}, `${accepted.length} accepted`)]
    : ["Nothing drafted"];
  if (accepted.length) parts.push(` (“${accepted.map((node) => node.text).join("").trim()}”)`);
  parts.push(", then the target added ", make("b", {}, `“${bonus.text.trim() || visible(bonus.text)}”`), `. ${time(total(round.t))}.`);
  fill(at("summary"), ...parts);
}

function redraw() {
  state.shown = drawTree(at("tree"), at("box"), state.nodes[0], isShown);
  at("tree").setAttribute("aria-label", `Draft tree of round ${state.round + 1}`);
  choose(state.chosen);
}

function show(index) {
  state.round = Math.max(0, Math.min(last, index));
  state.nodes = readRound(data.rounds[state.round], data);
  state.chosen = state.nodes.length - 1;
  at("slider").value = state.round + 1;
  at("slider").setAttribute("aria-valuetext", `round ${state.round + 1} of ${last + 1}`);
  at("number").textContent = `${state.round + 1} of ${last + 1}`;
  markStrip(at("strip"), state.round);
  at("previous").disabled = state.round === 0;
  at("next").disabled = state.round === last;
  redraw();
  at("box").scrollTo(0, 0);
  for (const update of [markText, summarise, listRules, listRound, markHeat, listTimes]) update();
  history.replaceState(null, "", `#round=${state.round + 1}`);
}

let wanted = null;

// The slider may ask for more rounds than can be drawn: only the last one of a frame is.
function showSoon(index) {
  if (wanted === null) requestAnimationFrame(() => { const round = wanted; wanted = null; show(round); });
  wanted = index;
}

let playing = null;

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => (state.round < last ? show(state.round + 1) : play(false)), 900) : null;
  at("play").textContent = on ? "Pause" : "Play";
  at("play").setAttribute("aria-pressed", on);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target === at("slider")) return;
  if (event.target.closest(".scroll")) return;
  const rounds = { ArrowLeft: state.round - 1, ArrowRight: state.round + 1, Home: 0, End: last };
  if (event.key in rounds) show(rounds[event.key]);
  else if (event.target === at("box") && (event.key === "ArrowUp" || event.key === "ArrowDown")) choose(neighbour(state.shown, state.chosen, event.key === "ArrowUp" ? -1 : 1), true);
  else return;
  event.preventDefault();
}

function describeText() {
  const { figures, setting } = data;
  const facts = [...Object.entries(setting), ["end", data.finish]];
  const pair = ([name, value], kind = "") => make("div", kind ? { class: kind } : {}, make("dt", {}, name), make("dd", {}, value));
  fill(at("setting"), ...facts.map((fact) => pair(fact)));
  fill(at("figures"),
    pair(["tokens per target pass", figures.mean_accepted_tokens.toFixed(2)], "lead"),
    pair([`tokens in ${count(last + 1, "round")}`, figures.tokens.toLocaleString("en")]),
    pair(["of the drafted tokens accepted", percent(figures.acceptance_rate)]),
    pair(["nodes per tree, the root included", figures.mean_nodes.toFixed(1)]),
    pair(["draft passes per round", figures.draft_efficiency.toFixed(2)]),
    pair(["tokens per second", figures.tokens_per_second.toFixed(1)]));
}

function start() {
  describeText();
  if (last < 0) {
    fill(at("text"), make("span", { class: "prompt" }, data.prompt));
    return;
  }
  at("slider").max = last + 1;
  at("guided").hidden = !data.rounds.some((round) => round.n.some((node) => node.length > SEEN));
  for (const draw of [writeText, drawHeat]) draw();
  drawStrip(at("strip"), data.rounds, showSoon);
  at("slider").addEventListener("input", (event) => showSoon(Number(event.target.value) - 1));
  at("previous").addEventListener("click", () => show(state.round - 1));
  at("next").addEventListener("click", () => show(state.round + 1));
  at("play").addEventListener("click", () => play(playing === null));
  at("listing").addEventListener("toggle", listRound);
  for (const id of ["show-cut", "show-unreached"]) at(id).addEventListener("change", redraw);
  at("show-rejected").addEventListener("change", (event) => at("text").classList.toggle("plain", !event.target.checked));
  at("tree").addEventListener("click", (event) => {
    const item = event.target.closest("[data-node]");
    if (item) choose(Number(item.dataset.node));
  });
  document.addEventListener("keydown", onKey);
  new ResizeObserver(redraw).observe(at("box"));
  show(Number(/round=(\d+)/.exec(location.hash)?.[1] ?? 1) - 1);
}

start();
