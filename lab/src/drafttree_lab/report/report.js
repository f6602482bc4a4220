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

// A verdict's count shows only the claims of that verdict; again, all.
const filters = [...document.querySelectorAll("button[data-outcome]")];
for (const button of filters) {
  button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") === "false";
    for (const other of filters) other.setAttribute("aria-pressed", String(pressed && other === button));
    for (const row of document.querySelectorAll("tr[data-outcome]"))
      row.hidden = pressed && row.dataset.outcome !== button.dataset.outcome;
  });
}
