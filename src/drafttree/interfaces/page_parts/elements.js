"use strict";
// Elements and numbers of a page. Text gets into the page through textContent alone.

const at = (id) => document.getElementById(id);

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

// A token in one line: spaces at its ends, line breaks and tabs are shown, by signs that fonts have.
function visible(text) {
  if (!text) return "∅";
  const shown = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "↤");
  return shown.replace(/^ +| +$/g, (blanks) => "·".repeat(blanks.length));
}

// The head of a table; all columns but the first are numbers.
function header(...names) {
  const cells = names.map((name, index) => make("th", { scope: "col", class: index ? "n" : "" }, name));
  return make("thead", {}, make("tr", {}, ...cells));
}

const total = (times) => times.reduce((sum, seconds) => sum + seconds, 0);


// The parts of a bar, as wide as the time of each phase.
function stack(times) {
  return times.map((seconds, phase) => {
    const part = make("div");
    part.style.width = `${(100 * seconds) / (total(times) || 1)}%`;
    part.style.background = `var(--p${phase})`;
    return part;
  });
}
