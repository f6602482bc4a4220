"use strict";
// Draft trees: a round as the server or a file has packed it, and its picture. Needs elements.js.

const WORDS = {
  root: "last token of the text", accepted: "accepted", rejected: "rejected", unreached: "not reached",
  bonus: "bonus token", cut: "cut",
};

function readNode([text, token, parent, rank, outcome, rule, draft, target, seen], index, words) {
  const names = { outcome: words.outcomes[outcome], rule: words.rules[rule] };
  return { index, text: words.strings[text], token, parent, rank, ...names, draft, target, seen, depth: 0, children: [] };
}

// The nodes of a round: the tree, what was cut, and the bonus token as the last one. Where the bonus token is among the
// cut candidates, it stands for both.
function readRound(round, words) {
  const nodes = [...round.n, round.b].map((row, index) => readNode(row, index, words)), bonus = nodes[nodes.length - 1];
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
function place(root, narrow, isShown) {
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
  return make("path", { class: `edge ${node.outcome}`, "data-edge": node.index, d: y1 === y2 ? `M${x1} ${y1}H${x2}` : elbow, "stroke-width": width });
}

function word(node, y) {
  const text = make("text", { class: "word", x: node.x + 10, y });
  if (/^[·⏎⇥↤∅]+$/.test(node.label.text)) return fill(text, node.label.text);
  for (const part of node.label.text.split(/(^·+|·+$|[⏎⇥↤∅]+)/)) {
    if (part) text.append(/^[·⏎⇥↤∅]/.test(part) ? make("tspan", { class: "blank" }, part) : part);
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

// Draws the tree of a root into an SVG element of a box; the nodes that are shown, each with its place.
function drawTree(tree, box, root, isShown) {
  const narrow = box.clientWidth < NARROW, { shown, width, height } = place(root, narrow, isShown);
  for (const [name, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) {
    tree.setAttribute(name, value);
  }
  const edges = shown.slice(1).map((node) => edge(node, narrow));
  edges.sort((a, b) => a.classList.contains("accepted") - b.classList.contains("accepted"));
  fill(tree, ...edges, ...shown.map(drawNode));
  return shown;
}

function describe(node) {
  const chance = node.outcome === "root" ? "" : `, draft ${percent(node.draft)}, target ${percent(node.target)}`;
  return `“${node.text}”: ${WORDS[node.outcome]}${node.outcome === "cut" ? ` by ${node.rule}` : ""}${chance}`;
}

function scrollTo(box, node) {
  if (node.x < box.scrollLeft || node.x + node.w > box.scrollLeft + box.clientWidth - 16) box.scrollLeft = node.x - box.clientWidth / 3;
  if (node.y < box.scrollTop || node.y + ROW > box.scrollTop + box.clientHeight) box.scrollTop = node.y - box.clientHeight / 3;
}

function meter(name, chance) {
  const bar = make("b");
  bar.style.width = `${100 * (chance ?? 0)}%`;
  return make("div", { class: `meter ${name}` }, make("span", {}, name), make("i", {}, bar), make("span", {}, chance === null ? "–" : exactly(chance)));
}

// The nodes of a round as a table; `why` tells what cut a node, or ended a path at it.
function listNodes(table, nodes, why) {
  const rows = nodes.map((node) => {
    const numbers = [node.depth, node.rank < 0 ? "–" : node.rank + 1, exactly(node.draft), exactly(node.target)];
    const cells = numbers.map((number) => make("td", { class: "n" }, node.outcome === "root" ? "–" : number));
    const words = make("td", { class: node.outcome }, WORDS[node.outcome]);
    return make("tr", {}, make("td", { class: "word" }, visible(node.text)), ...cells, words, make("td", {}, why(node)));
  });
  const head = header("token", "depth", "rank", "draft", "target");
  head.firstChild.append(make("th", { scope: "col" }, "outcome"), make("th", { scope: "col" }, "why"));
  fill(table, head, make("tbody", {}, ...rows));
}

// A bar for every round, as high as it has accepted and bonus tokens; `go` is told which round is pointed at.
function drawStrip(strip, rounds, go) {
  const most = Math.max(...rounds.map((round) => round.c), 1);
  const gap = rounds.length <= 250 ? 0.18 : 0;
  const bars = rounds.flatMap((round, index) => [
    make("rect", { class: "a", x: index + gap / 2, width: 1 - gap, y: most - round.c, height: round.a }),
    make("rect", { class: "b", x: index + gap / 2, width: 1 - gap, y: most - round.c + round.a, height: round.c - round.a }),
  ]);
  strip.setAttribute("viewBox", `0 0 ${Math.max(rounds.length, 1)} ${most}`);
  fill(strip, make("rect", { class: "cursor", y: 0, width: 1, height: most }), ...bars);
  const point = (event) => {
    const style = getComputedStyle(strip), box = strip.getBoundingClientRect();
    const [left, right] = [parseFloat(style.paddingLeft), parseFloat(style.paddingRight)];
    go(Math.floor(((event.clientX - box.left - left) / (box.width - left - right)) * rounds.length));
  };
  strip.onpointerdown = (event) => { strip.setPointerCapture(event.pointerId); point(event); };
  strip.onpointermove = (event) => { if (event.buttons) point(event); };
}

const markStrip = (strip, round) => strip.querySelector(".cursor")?.setAttribute("x", round);

// The shown node above or below another one.
function neighbour(shown, index, direction) {
  const by_row = [...shown].sort((a, b) => a.row - b.row || a.depth - b.depth);
  const now = by_row.findIndex((node) => node.index === index);
  return by_row[Math.max(0, Math.min(by_row.length - 1, now + direction))].index;
}
