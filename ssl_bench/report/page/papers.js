// Tables, figures and claims of papers that these runs fill.

function papers() {
  const ids = new Set(scope.map((run) => run.id));
  const tables = report.tables.filter(({ cells }) => cells.some(({ runs }) => runs.some((id) => ids.has(id))));
  const claims = report.claims.filter((claim) => tables.some((each) => each.name === claim.claim));
  if (!tables.length) return fill(byId("papers"));
  fill(byId("papers"), el("h2", {}, "Papers"), claims.length ? claimTable(claims) : null, tables.map((each) =>
    el("details", { "data-open": `table ${each.name}`, open: tables.length === 1 },
      el("summary", { "data-focus": each.name }, `${each.name}: ${each.title}`),
      soft(each.cite), each.x ? paperFigure(each) : null, paperTable(each))));
}

function claimTable(claims) {
  const numbers = (all) => (all.length ? `${number(statistics(all).mean)} (${all.length})` : "no runs");
  const criterion = (each) => el("div", {},
    `${each.control ? "control: " : ""}${each.says}: ${numbers(each.numbers)}, must be ${each.limit}: ${each.verdict}`);
  const rows = claims.map((each) =>
    [rowHead(each.claim), each.verdict, `${each.says} (${each.where})`, el("td", {}, each.criteria.map(criterion))]);
  return table("claims", ["claim", "verdict", "the paper says", "criteria"], rows, { class: "wrap", id: "claims" });
}

// Rows and columns as in the paper; each cell has the paper's number, and ours below it.
function paperTable({ name, cells }) {
  const filled = cells.filter((cell) => cell.ours.length || cell.reduced.length);
  const rows = [...new Set(filled.map((cell) => cell.row))], columns = [...new Set(cells.map((cell) => cell.column))];
  const line = (word, numbers) =>
    numbers.length > 0 && el("div", {}, `${word} ${meanText(statistics(numbers), (value) => value.toFixed(2))}`);
  const entry = (cell) => cell && [
    cell.reported && el("div", { class: "soft" }, `paper ${cell.reported}`), line("ours", cell.ours),
    line("reduced", cell.reduced),
  ];
  const at = (row, column) => cells.find((each) => each.row === row && each.column === column);
  return [
    table(name, ["", ...columns], rows.map((row) =>
      [rowHead(row), ...columns.map((column) => el("td", {}, entry(at(row, column))))])),
    soft("Ours: mean \u00b1 standard deviation (n). Reduced: runs of scale=reduced, which are no reproduction."),
  ];
}

// The paper's points, hollow and dotted, and ours.
function paperFigure({ name, x, y, doubling, cells }) {
  const drawn = cells.filter((cell) => isNumber(cell.x) && (isNumber(cell.paper) || cell.ours.length));
  const rows = [...new Set(drawn.map((cell) => cell.row))], at = (points) => points.map((cell) => cell.x);
  if (!rows.length) return null;
  const lines = (row, index) => {
    const points = drawn.filter((cell) => cell.row === row), own = points.filter((cell) => cell.ours.length);
    const reported = points.filter((cell) => isNumber(cell.paper)), found = own.map((cell) => statistics(cell.ours));
    const look = { text: plain(row), hovertemplate: "%{text}<br>%{x}: %{y:.4g}<extra></extra>" };
    const numbers = reported.map((cell) => cell.paper), paperText = { ...look, text: `${plain(row)} (paper)` };
    const paper = line(index, at(reported), numbers, paperText);
    Object.assign(paper.line, { dash: "dot", width: 1.5 });
    paper.marker.symbol += "-open";
    return [paper, line(index, at(own), found.map(({ mean }) => mean), { ...look, error_y: errorBars(found) })];
  };
  const make = () => ({
    layout: layout({ ...axisOf(x, at(drawn)), ...(doubling ? { type: "log" } : {}) }, { title: y }),
    traces: rows.flatMap(lines),
  });
  return [legend(rows), chart(`${name}: the paper's points, hollow and dotted, and ours`, make, "plot tall")];
}
