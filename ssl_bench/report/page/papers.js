// Tables, figures and claims of papers that these runs fill.

function papers() {
  const ids = new Set(scope.map((run) => run.id));
  const tables = report.tables.filter((table) => table.cells.some((cell) => cell.runs.some((id) => ids.has(id))));
  const claims = report.claims.filter((claim) => tables.some((table) => table.name === claim.claim));
  if (!tables.length && !claims.length) return fill(byId("papers"));
  fill(byId("papers"), el("h2", {}, "Papers"),
    claims.length ? claimTable(claims) : null,
    tables.map((table) => el("details", { "data-open": `table ${table.name}`, open: tables.length === 1 }, el("summary", { "data-focus": table.name }, `${table.name}: ${table.title}`),
      el("p", { class: "soft" }, table.cite), table.x ? paperFigure(table) : null, paperTable(table))));
}

function claimTable(claims) {
  const numbers = (each) => (each.numbers.length ? `${number(statistics(each.numbers).mean)} (${each.numbers.length})` : "no runs");
  return scrolled("claims", el("table", { class: "wrap", id: "claims" },
    el("thead", {}, el("tr", {}, ["claim", "verdict", "the paper says", "criteria"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, claims.map((claim) => el("tr", {}, el("th", { scope: "row" }, claim.claim), el("td", {}, claim.verdict), el("td", {}, `${claim.says} (${claim.where})`),
      el("td", {}, claim.criteria.map((each) => el("div", {}, `${each.control ? "control: " : ""}${each.says}: ${numbers(each)}, must be ${each.limit}: ${each.verdict}`))))))));
}

// Rows and columns as in the paper; each cell has the paper's number, and ours below it.
function paperTable({ name, cells }) {
  const filled = cells.filter((cell) => cell.ours.length || cell.reduced.length);
  const rows = [...new Set(filled.map((cell) => cell.row))], columns = [...new Set(cells.map((cell) => cell.column))];
  const ours = (numbers, word) => {
    const { n, mean, std } = statistics(numbers);
    return el("div", {}, `${word} ${mean.toFixed(2)}${std === null ? "" : ` \u00b1 ${std.toFixed(2)}`} (${n})`);
  };
  return [
    scrolled(name, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), columns.map((column) => el("th", { scope: "col" }, column)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row), columns.map((column) => {
        const cell = cells.find((each) => each.row === row && each.column === column);
        return el("td", {}, cell && [cell.reported ? el("div", { class: "soft" }, `paper ${cell.reported}`) : null, cell.ours.length ? ours(cell.ours, "ours") : null, cell.reduced.length ? ours(cell.reduced, "reduced") : null]);
      })))))),
    el("p", { class: "soft" }, "Ours: mean \u00b1 standard deviation (n). Reduced: runs of scale=reduced, which do not count as a reproduction."),
  ];
}

function paperFigure({ name, x, y, doubling, cells }) {
  const drawn = cells.filter((cell) => isNumber(cell.x) && (isNumber(cell.paper) || cell.ours.length));
  const rows = [...new Set(drawn.map((cell) => cell.row))];
  if (!rows.length) return null;
  const make = () => ({
    layout: layout({ ...axisOf(x, drawn.map((cell) => cell.x)), ...(doubling ? { type: "log" } : {}) }, { title: y }),
    traces: rows.flatMap((row, index) => {
      const points = drawn.filter((cell) => cell.row === row), look = style(index);
      const reported = points.filter((cell) => isNumber(cell.paper)), own = points.filter((cell) => cell.ours.length);
      const found = own.map((cell) => statistics(cell.ours));
      return [
        { type: "scatter", mode: "lines+markers", name: `${plain(row)} (paper)`, x: reported.map((cell) => cell.x), y: reported.map((cell) => cell.paper), line: { color: look.colour, dash: "dot", width: 1.5 }, marker: { symbol: `${look.symbol}-open`, color: look.colour, size: 8 } },
        { type: "scatter", mode: "lines+markers", name: plain(row), x: own.map((cell) => cell.x), y: found.map((each) => each.mean), error_y: { type: "data", array: found.map((each) => each.std ?? 0) }, line: { color: look.colour, dash: look.dash, width: 2 }, marker: { symbol: look.symbol, color: look.colour, size: 8 } },
      ];
    }),
  });
  return [legend(rows), chart(`${name}: the paper's points, hollow and dotted, and ours`, make, "plot tall")];
}
