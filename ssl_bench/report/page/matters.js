// What matters in an experiment: of each setting its largest difference, with an interval.

function mattersSection() {
  const found = experiment()?.matters[metric()];
  if (!found) return fill(byId("matters"));
  fill(byId("matters"), el("h2", {}, "What matters"), el("p", {}, found.title),
    soft("Of all runs of the experiment, for any filter, as ssl-bench compare says it."),
    table("what matters", found.columns, found.rows.map(([name, ...rest]) => [rowHead(name), ...rest])),
    el("div", { class: "panels" }, differencesPanel(found)),
    found.below.map((line) => soft(line)));
}

function differencesPanel({ settings, unit: label }) {
  const beside = (a, b) => (a === null || b === null ? 0 : a - b);
  const make = () => ({
    layout: layout({ title: `largest difference, ${label}` }, { type: "category", autorange: "reversed" }),
    traces: [{
      type: "scatter", mode: "markers", y: settings.map(({ setting }) => plain(setting)),
      x: settings.map(({ difference }) => difference), marker: { color: colourOf(0), size: 9 },
      error_x: {
        type: "data", symmetric: false, thickness: 1.2, width: 3,
        array: settings.map(({ difference, high }) => beside(high, difference)),
        arrayminus: settings.map(({ difference, low }) => beside(difference, low)),
      },
      text: settings.map((of) => `${plain(of.setting)}: ${plain(of.from)} < ${plain(of.to)}<br>${number(of.difference)}`),
    }],
  });
  return el("div", { class: "panel" }, chart("largest differences with intervals; the table has the numbers", make));
}
