// Tables sort by any column: a click, Enter or Space on its heading.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (left, right) => {
    if (left === "" || right === "") return (left === "") - (right === "");
    return typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right));
  };
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(key(a, column), key(b, column)));
      body.append(...(descending ? rows.reverse() : rows));
    });
  });
}
