// Learning curves of the selected runs, or of the best.

const MOST_CURVES = 8; // runs that are shown
const CURVE_LABELS = {
  "watch/knn_top1": "kNN on a sample of the training images (watch/knn_top1, %)", loss: "loss (nats)", "npc/mean": "multiplier q_B (npc/mean)", information: "bound on the information (nats)",
  "query_grad/mean": "gradient norm of the queries (query_grad/mean)", images_per_second: "speed (images/s)",
};
const FIRST = ["watch/effective_rank", "npc/mean", "information", "query_grad/mean"]; // after the metrics

// All curves of runs, and those of them that are shown without being asked for.
function curveNames(runs) {
  const found = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].sort();
  const measured = found.filter((name) => about(name).better);
  const main = [...measured.slice(0, 2), ...measured.filter((name) => about(name).usual)];
  const oneLoss = differ("loss", runs) ? [] : ["loss"]; // the values of different losses are not compared
  const usual = [...new Set(["watch/knn_top1", ...main, ...oneLoss, ...FIRST])].filter((name) => found.includes(name));
  return { all: [...new Set([...usual, ...measured, ...found])], usual };
}

function curveSection() {
  const selected = chosenRuns(), name = metric();
  const having = kept.filter((run) => Object.keys(run.curves).length);
  const runs = (selected.length ? selected : order(name ? bestFirst(name) : "run", having)).slice(0, MOST_CURVES);
  const { all, usual } = curveNames(runs);
  if (!all.length) return fill(byId("curves"));
  const wanted = view.names ? names(view.names) : usual;
  const first = about(name).better ? "best" : "first", count = counted(runs.length, "run");
  const says = selected.length ? `${runs.length} of ${counted(selected.length, "selected run")}.`
    : runs.length < having.length && `The ${first} ${count} of ${having.length}; select others in the table.`;
  const smooth = el("input", {
    type: "range", min: "0", max: "0.95", step: "0.05", value: view.smooth, "data-focus": "smooth",
    onchange: () => set({ smooth: smooth.value }),
  });
  fill(byId("curves"), el("h2", {}, "Learning curves"),
    row(menu("Curves", "names", all, wanted), choice("Over", "clock", [["epoch", "epochs"], ["step", "steps"]]),
      el("label", {}, "Smoothing", smooth, view.smooth)),
    says && soft(says), curvePanels(runs, wanted));
}

// Means over the seeds of an experiment, with a band of one standard deviation, which is pooled over the epochs.
function seedSection() {
  const found = Object.entries(experiment()?.seeds ?? {});
  if (!found.length) return fill(byId("seeds"));
  fill(byId("seeds"), el("h2", {}, "Curves over seeds"),
    soft("Mean over the seeds \u00b1 one standard deviation, pooled over the epochs, of all runs: no filter changes it."),
    legend(found[0][1].map(({ label }) => label)),
    el("div", { class: "panels" }, found.map(([name, lines]) => seedPanel(name, lines))));
}

function seedPanel(name, lines) {
  const band = ({ label, epochs, mean, deviation }, index) => {
    const edge = (sign) => mean.map((value) => value + sign * (deviation ?? 0));
    const edges = { type: "scatter", mode: "lines", x: epochs, line: { width: 0 }, hoverinfo: "skip" };
    const hovertemplate = `${plain(label)}<br>${plain(name)} %{y:.4g}<extra></extra>`;
    return [
      { ...edges, y: edge(-1) }, { ...edges, y: edge(1), fill: "tonexty", fillcolor: `${colourOf(index)}33` },
      line(index, epochs, mean, { mode: epochs.length < 40 ? "lines+markers" : "lines", hovertemplate }),
    ];
  };
  const make = () => ({ layout: layout({ title: "epoch" }, axisOfMetric(name, "")), traces: lines.flatMap(band) });
  return el("div", { class: "panel" }, el("h3", {}, CURVE_LABELS[name] ?? unit(name)),
    chart(`${name} over the epochs, mean over seeds of ${counted(lines.length, "line")}`, make));
}

function curvePanels(runs, wanted) {
  const there = wanted.filter((name) => runs.some((run) => run.curves[name]));
  return [legend(distinguished(runs)), el("div", { class: "panels" }, there.map((name) => curvePanel(runs, name)))];
}

// The labels of runs without the words that all have.
function distinguished(runs) {
  const words = runs.map((run) => (run.label || run.id).split(" "));
  const own = (word) => runs.length < 2 || words.some((others) => !others.includes(word));
  return words.map((its, place) => its.filter(own).join(" ") || runs[place].id);
}

function curvePanel(runs, name) {
  const curves = runs.map((run) => run.curves[name]).filter(Boolean);
  const sum = (count) => curves.reduce((total, curve) => total + count(curve), 0);
  const kept = sum((curve) => curve[0].length), all = sum((curve) => curve[2]), lost = sum((curve) => curve[3]);
  const thinned = `${kept} of ${all} points are drawn: the smallest and the largest value of each stretch. `;
  const make = () => ({
    layout: layout({ title: view.clock }, axisOfMetric(name, "")),
    traces: runs.flatMap((run, index) => (run.curves[name] ? curveOf(run, name, index) : [])),
  });
  return el("div", { class: "panel" }, el("h3", {}, CURVE_LABELS[name] ?? unit(name)),
    chart(`${name} during the training of ${counted(curves.length, "run")}`, make),
    kept < all ? soft(kept < all - lost ? thinned : "", lost ? `${lost} values were not finite.` : "") : null);
}

function curveOf(run, name, index) {
  const [steps, values] = run.curves[name], y = values.map((value) => scaled(name, value));
  const weight = about(name).share ? 0 : Number(view.smooth); // evaluations are few, and no noise of a batch
  const x = view.clock === "epoch" && run.steps_per_epoch ? steps.map((step) => step / run.steps_per_epoch) : steps;
  const template = `${plain(run.label || run.id)}<br>${plain(name)} %{y:.4g}<extra></extra>`;
  const raw = line(index, x, y, { mode: y.length < 40 ? "lines+markers" : "lines", hovertemplate: template });
  raw.marker.size = 5;
  if (!weight) return [raw];
  return [
    { ...raw, mode: "lines", line: { color: colourOf(index), width: 1 }, opacity: 0.25, hovertemplate: null },
    { ...raw, y: smoothed(y, weight), mode: "lines" },
  ];
}

// Exponential mean of the points, without the bias to zero at the start.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + 1 - weight;
    return sum / total;
  });
}
