// What matters in an experiment: shares of the variance, and the means of each setting's values.

function mattersSection() {
  const found = experiment()?.matters[metric()];
  if (!found) return fill(byId("matters"));
  fill(byId("matters"), el("h2", {}, "What matters"), el("p", {}, found.sentence),
    soft("Of all runs of the experiment, for any filter, as ssl-bench compare says it."),
    el("div", { class: "panels" }, sharesPanel(found), found.settings.map((setting) => meansPanel(found, setting))),
    table("what matters", found.columns, found.rows.map(([name, ...rest]) => [rowHead(name), ...rest])),
    found.below.map((line) => soft(line)));
}

function sharesPanel({ shares }) {
  const shown = shares.toSorted((a, b) => (b.setting !== "rest") - (a.setting !== "rest") || b.share - a.share);
  const percent = (value) => 100 * value, beside = (a, b) => Math.max(percent(a - b), 0);
  const make = () => ({
    layout: layout({ title: "share of variance (%)", range: [0, 100] }, { type: "category", autorange: "reversed" }),
    traces: [{
      type: "bar", orientation: "h", y: shown.map(({ setting }) => plain(setting)),
      x: shown.map(({ share }) => percent(share)), marker: { color: colourOf(0) },
      hovertemplate: "%{y}: %{x:.0f}%<extra></extra>",
      ...(shown[0].low === null ? {} : { error_x: {
        type: "data", symmetric: false, thickness: 1.2, width: 3,
        array: shown.map(({ share, high }) => beside(high, share)),
        arrayminus: shown.map(({ share, low }) => beside(share, low)),
      } }),
    }],
  });
  return el("div", { class: "panel" }, chart("shares of the variance; the table has the numbers", make));
}

// All panels have one axis, so that what matters little is flat.
function meansPanel({ settings, unit: label }, { setting, levels, means, half_intervals: halves }) {
  const ends = settings.flatMap((of) => of.means.flatMap((mean, i) => [1, -1].map((s) => mean + s * (of.half_intervals[i] ?? 0))));
  const make = () => ({
    layout: layout(axisOf(setting, levels), { title: label, range: spread(ends) }),
    traces: [line(0, levels.map((value) => (isNumber(value) ? value : plain(value))), means, {
      error_y: { type: "data", array: halves.map((half) => half ?? 0), thickness: 1.2, width: 3 },
      mode: levels.every(isNumber) ? "lines+markers" : "markers",
      text: levels.map((value, i) => `${plain(setting)}=${plain(value)}<br>${number(means[i])}`),
    })],
  });
  return el("div", { class: "panel" }, chart(`means over ${setting}; the table has the range`, make));
}
