"use strict";
// The page of a trace: the data stay as they came, and only the current round is drawn. Text of the trace gets into the
// page through textContent alone.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const last = data.rounds.length - 1;
const SEEN = 8; // a row of a node has this many entries, and one more where the policy saw another probability
const state = { round: 0, chosen: 0, nodes: [] };
const WORDS = {
  root: "last token of the text", accepted: "accepted", rejected: "rejected", unreached: "not reached",
  bonus: "bonus token", cut: "cut",
};
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

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "rect", "text", "tspan", "title"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children);
  return element;
}

const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

function percent(chance) {
  if (chance === null || chance === undefined) return "–";
  if (chance > 0 && chance < 0.01) return "<1%";
  return chance > 0.99 && chance < 1 ? ">99%" : `${Math.round(100 * chance)}%`;
}

function exactly(chance) {
  if (chance === null || chance === undefined) return "not known";
  return chance > 0 && chance < 0.0001 ? chance.toExponential(1) : chance.toFixed(4).replace(/0{1,2}$/, "");
}

function time(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(1e3 * seconds).toFixed(seconds < 0.1 ? 2 : 0)} ms` : `${(1e6 * seconds).toFixed(0)} µs`;
}

// A token in one line: blanks at its ends, line breaks and tabs are shown.
function visible(text) {
  if (!text) return "∅";
  const shown = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  return shown.replace(/^ +| +$/g, (blanks) => "␣".repeat(blanks.length));
}

function readNode([text, token, parent, rank, outcome, rule, draft, target, seen], index) {
  const names = { outcome: data.outcomes[outcome], rule: data.rules[rule] };
  return { index, text: data.strings[text], token, parent, rank, ...names, draft, target, seen, depth: 0, children: [] };
}

// The nodes of a round: the tree, what was cut, and the bonus token as the last one. Where the bonus token is among the
// cut candidates, it stands for both.
function readRound(round) {
  const nodes = [...round.n, round.b].map(readNode), bonus = nodes[nodes.length - 1];
  for (const node of nodes.slice(1)) {
    node.above = nodes[node.parent];
    node.depth = node.above.depth + 1;
    node.above.children.push(node);
  }
  const twin = bonus.above.children.find((node) => node.outcome === "cut" && node.token === bonus.token);
  if (twin) {
    bonus.children = twin.children;
    for (const child of bonus.children) child.above = bonus;
    bonus.above.children = bonus.above.children.filter((node) => node !== twin);
  }
  return nodes;
}

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

// ---- the rounds at a glance -----------------------------------------------------------------------------------------

function drawStrip() {
  const most = Math.max(...data.rounds.map((round) => round.c), 1);
  const gap = last < 250 ? 0.18 : 0;
  const bars = data.rounds.flatMap((round, index) => [
    make("rect", { class: "a", x: index + gap / 2, width: 1 - gap, y: most - round.c, height: round.a }),
    make("rect", { class: "b", x: index + gap / 2, width: 1 - gap, y: most - round.c + round.a, height: round.c - round.a }),
  ]);
  const strip = at("strip");
  strip.setAttribute("viewBox", `0 0 ${last + 1} ${most}`);
  fill(strip, make("rect", { class: "cursor", id: "cursor", y: 0, width: 1, height: most }), ...bars);
  const go = (event) => {
    const style = getComputedStyle(strip), box = strip.getBoundingClientRect();
    const [left, right] = [parseFloat(style.paddingLeft), parseFloat(style.paddingRight)];
    showSoon(Math.floor(((event.clientX - box.left - left) / (box.width - left - right)) * (last + 1)));
  };
  strip.addEventListener("pointerdown", (event) => { strip.setPointerCapture(event.pointerId); go(event); });
  strip.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
}

// ---- the tree -------------------------------------------------------------------------------------------------------

const PILL = 38, ROW = 47, NARROW_ROW = 44, GAP = 34, INDENT = 18, MARGIN = 8;
const LETTER = 7.9, LONGEST = 18, NARROW = 560;

// Characters of East Asian scripts and pictures take two columns.
const wide = (character) => (/[ᄀ-ᅟ⺀-꓏가-힣豈-﫿︰-﹏＀-｠\u{1f300}-\u{1faff}]/u.test(character) ? 2 : 1);

function label(node) {
  const characters = [...visible(node.text)];
  let width = 0, end = 0;
  while (end < characters.length && width + wide(characters[end]) <= LONGEST) width += wide(characters[end++]);
  const text = characters.slice(0, end).join("") + (end < characters.length ? "…" : "");
  return { text, width: LETTER * (width + (end < characters.length ? 1 : 0)) };
}

function isShown(node) {
  return (node.outcome !== "cut" || at("show-cut").checked) && (node.outcome !== "unreached" || at("show-unreached").checked);
}

// The accepted path and the bonus token come first, so that they are the topmost line; then the tree by rank, then cuts.
function order(node) {
  const order = ["accepted", "bonus", "rejected", "unreached", "cut"];
  const kind = Math.min(order.indexOf(node.outcome), 3) + (node.outcome === "cut" ? 1 : 0);
  return [kind, node.outcome === "cut" ? -node.draft : node.rank];
}

// The width of a node: its token, and beside it the rule that cut it.
const space = (node) => Math.max(88, node.label.width + 20 + (node.outcome === "cut" ? 8 + 6.4 * node.rule.length : 0));

// Where every shown node goes. On wide screens a node stands beside its first child, so that the accepted path is one
// line; on narrow ones every node has a line of its own.
function place(root, narrow) {
  const widths = [], shown = [];
  let rows = 0;
  const visit = (node) => {
    node.label = label(node);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, space(node));
    node.row = rows;
    shown.push(node);
    const below = node.children.filter(isShown).sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
    below.forEach((child, index) => {
      if (index || narrow) rows += 1;
      visit(child);
    });
  };
  visit(root);
  const lefts = widths.reduce((sums, width) => [...sums, sums[sums.length - 1] + width + GAP], [MARGIN]);
  for (const node of shown) {
    node.x = narrow ? MARGIN + INDENT * node.depth : lefts[node.depth];
    node.w = narrow ? space(node) : widths[node.depth];
    node.y = MARGIN + node.row * (narrow ? NARROW_ROW : ROW);
  }
  const far = (side, size) => Math.max(...shown.map((node) => node[side] + (size ?? node.w))) + MARGIN;
  return { shown, width: far("x"), height: far("y", PILL) };
}

function edge(node, narrow) {
  const { above } = node, bend = 9;
  const [x1, y1, x2, y2] = [above.x + above.w, above.y + PILL / 2, node.x, node.y + PILL / 2];
  const trunk = narrow ? above.x + INDENT / 2 : x1 + GAP * 0.45;
  const start = narrow ? `M${trunk} ${above.y + PILL}` : `M${x1} ${y1}H${trunk - bend}Q${trunk} ${y1} ${trunk} ${y1 + bend}`;
  const elbow = `${start}V${y2 - bend}Q${trunk} ${y2} ${trunk + bend} ${y2}H${x2}`;
  const width = (1 + 2.5 * (node.draft ?? 0)).toFixed(1);
  return make("path", { class: `edge ${node.outcome}`, d: y1 === y2 ? `M${x1} ${y1}H${x2}` : elbow, "stroke-width": width });
}

function word(node, y) {
  const text = make("text", { class: "word", x: node.x + 10, y });
  if (/^[␣⏎⇥␍∅]+$/.test(node.label.text)) return fill(text, node.label.text);
  for (const part of node.label.text.split(/([␣⏎⇥␍∅]+)/)) {
    if (part) text.append(/^[␣⏎⇥␍∅]/.test(part) ? make("tspan", { class: "blank" }, part) : part);
  }
  return text;
}

function chances(node) {
  const base = node.y + 29, half = node.w / 2 - 12, parts = [];
  for (const [name, chance, left, x] of [
    ["draft", node.draft, node.x + 10, node.x + 10],
    ["target", node.target, node.x + node.w / 2 + 2, node.x + node.w - 10],
  ]) {
    parts.push(make("text", { class: `chance ${name}`, x, y: base }, percent(chance)));
    const size = { y: node.y + 32.5, height: 2.5, rx: 1.2, width: Math.max(half * chance, 1) };
    if (chance) parts.push(make("rect", { class: `gauge ${name}`, x: left, ...size }));
  }
  if (node.outcome === "cut") {
    parts.push(make("text", { class: "chance rule", x: node.x + node.w - 10, y: node.y + 17 }, node.rule));
  }
  return parts;
}

function drawNode(node) {
  const group = make("g", { class: `item ${node.outcome}`, "data-node": node.index });
  group.append(make("title", {}, describe(node)));
  group.append(make("rect", { class: "pill", x: node.x, y: node.y, width: node.w, height: PILL, rx: 8 }));
  const root = node.outcome === "root";
  group.append(word(node, node.y + (root ? 24 : 17)), ...(root ? [] : chances(node)));
  return group;
}

function drawTree() {
  const narrow = at("box").clientWidth < NARROW, { shown, width, height } = place(state.nodes[0], narrow);
  const tree = at("tree");
  for (const [name, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) {
    tree.setAttribute(name, value);
  }
  const edges = shown.slice(1).map((node) => edge(node, narrow));
  edges.sort((a, b) => a.classList.contains("accepted") - b.classList.contains("accepted"));
  fill(tree, ...edges, ...shown.map(drawNode));
  tree.setAttribute("aria-label", `Draft tree of round ${state.round + 1}`);
  state.shown = shown;
}

function describe(node) {
  const chance = node.outcome === "root" ? "" : `, draft ${percent(node.draft)}, target ${percent(node.target)}`;
  return `“${node.text}”: ${WORDS[node.outcome]}${node.outcome === "cut" ? ` by ${node.rule}` : ""}${chance}`;
}

// ---- the details ----------------------------------------------------------------------------------------------------

function meter(name, chance) {
  const bar = make("b");
  bar.style.width = `${100 * (chance ?? 0)}%`;
  return make("div", { class: `meter ${name}` }, make("span", {}, name), make("i", {}, bar), make("span", {}, chance === null ? "–" : exactly(chance)));
}

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
  if (scroll && node.x !== undefined) scrollTo(node);
}

function scrollTo(node) {
  const box = at("box");
  if (node.x < box.scrollLeft || node.x + node.w > box.scrollLeft + box.clientWidth - 16) box.scrollLeft = node.x - box.clientWidth / 3;
  if (node.y < box.scrollTop || node.y + ROW > box.scrollTop + box.clientHeight) box.scrollTop = node.y - box.clientHeight / 3;
}

function header(...names) {
  const cells = names.map((name, index) => make("th", { scope: "col", class: index ? "n" : "" }, name));
  return make("thead", {}, make("tr", {}, ...cells));
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

function listNodes() {
  if (!at("listing").open) return;
  const rows = state.nodes.map((node) => {
    const why = node.outcome === "cut" || node.outcome === "bonus" ? (CUT[node.rule] ?? "") : (ENDED[node.rule] ?? "");
    const numbers = [node.depth, node.rank < 0 ? "–" : node.rank + 1, exactly(node.draft), exactly(node.target)];
    const cells = numbers.map((number) => make("td", { class: "n" }, node.outcome === "root" ? "–" : number));
    const words = make("td", { class: node.outcome }, WORDS[node.outcome]);
    return make("tr", {}, make("td", { class: "word" }, visible(node.text)), ...cells, words, make("td", {}, why));
  });
  const head = header("token", "depth", "rank", "draft", "target");
  head.firstChild.append(make("th", { scope: "col" }, "outcome"), make("th", { scope: "col" }, "why"));
  fill(at("nodes"), head, make("tbody", {}, ...rows));
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
const total = (times) => times.reduce((sum, seconds) => sum + seconds, 0);

function stack(times) {
  return times.map((seconds, phase) => {
    const part = make("div");
    part.style.width = `${(100 * seconds) / (total(times) || 1)}%`;
    part.style.background = `var(--p${phase})`;
    return part;
  });
}

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
  drawTree();
  choose(state.chosen);
}

function show(index) {
  state.round = Math.max(0, Math.min(last, index));
  state.nodes = readRound(data.rounds[state.round]);
  state.chosen = state.nodes.length - 1;
  at("slider").value = state.round + 1;
  at("slider").setAttribute("aria-valuetext", `round ${state.round + 1} of ${last + 1}`);
  at("number").textContent = `${state.round + 1} of ${last + 1}`;
  at("cursor").setAttribute("x", state.round);
  at("previous").disabled = state.round === 0;
  at("next").disabled = state.round === last;
  redraw();
  at("box").scrollTo(0, 0);
  for (const update of [markText, summarise, listRules, listNodes, markHeat, listTimes]) update();
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

function step(direction) {
  const by_row = [...state.shown].sort((a, b) => a.row - b.row || a.depth - b.depth);
  const now = by_row.findIndex((node) => node.index === state.chosen);
  choose(by_row[Math.max(0, Math.min(by_row.length - 1, now + direction))].index, true);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target === at("slider")) return;
  if (event.target.closest(".scroll")) return;
  const rounds = { ArrowLeft: state.round - 1, ArrowRight: state.round + 1, Home: 0, End: last };
  if (event.key in rounds) show(rounds[event.key]);
  else if (event.target === at("box") && (event.key === "ArrowUp" || event.key === "ArrowDown")) step(event.key === "ArrowUp" ? -1 : 1);
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
  for (const draw of [writeText, drawStrip, drawHeat]) draw();
  at("slider").addEventListener("input", (event) => showSoon(Number(event.target.value) - 1));
  at("previous").addEventListener("click", () => show(state.round - 1));
  at("next").addEventListener("click", () => show(state.round + 1));
  at("play").addEventListener("click", () => play(playing === null));
  at("listing").addEventListener("toggle", listNodes);
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
