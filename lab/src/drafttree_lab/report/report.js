// Tables sort by any column: a click, Enter or Space on its heading. Cells without a value stay last.
const value = (row, column) => {
  const cell = row.cells[column];
  const text = (cell.dataset.value ?? cell.textContent).trim();
  return { text, number: text === "" ? NaN : Number(text) };
};
const compare = (left, right) =>
  Number.isNaN(left.number) || Number.isNaN(right.number)
    ? left.text.localeCompare(right.text, "en", { numeric: true })
    : left.number - right.number;

const sort = (table, heading) => {
  const descending = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const keyed = [...table.tBodies[0].rows].map((row) => ({ row, key: value(row, heading.cellIndex) }));
  keyed.sort((left, right) => {
    if (!left.key.text || !right.key.text) return !left.key.text - !right.key.text;
    return descending ? compare(right.key, left.key) : compare(left.key, right.key);
  });
  table.tBodies[0].append(...keyed.map(({ row }) => row));
};

for (const table of document.querySelectorAll("table.sortable")) {
  for (const heading of table.querySelector("tr.keys").cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, heading));
    heading.append(button);
  }
}

// A count shows only the claims of its outcome, by its kind of judgement; again, all.
const filters = [...document.querySelectorAll("button[data-outcome]")];
const rows = [...document.querySelectorAll("#claims tbody tr")];
const further = document.getElementById("further");
for (const button of filters) {
  button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") === "false";
    const { kind, outcome } = button.dataset;
    for (const other of filters) other.setAttribute("aria-pressed", String(pressed && other === button));
    for (const row of rows) row.hidden = pressed && row.getAttribute(`data-${kind}`) !== outcome;
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = pressed ? `${shown} of ${rows.length} claims shown` : "";
    if (pressed && further) further.open = true;
  });
}

// Chromium opens the folds around a link's target itself; this is for browsers that do not.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();

const results = [...document.querySelectorAll("details.result")];
const all = document.createElement("button");
all.type = "button";
all.textContent = "Open all results";
all.addEventListener("click", () => {
  const open = results.some((result) => !result.open);
  for (const result of results) result.open = open;
  all.textContent = open ? "Close all results" : "Open all results";
});
document.getElementById("contents").after(all);
