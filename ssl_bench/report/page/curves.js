// Learning curves of the selected runs, side by side or two runs.

const MOST_CURVES = 8; // runs that are shown
const CURVE_LABELS = {
  loss: "loss (nats)", "npc/mean": "multiplier q_B (npc/mean)", information: "bound on the information (nats)",
  "query_grad/mean": "gradient norm of the queries (query_grad/mean)", images_per_second: "speed (images/s)",
};

function curveNames(runs) {
  const found = new Set(runs.flatMap((run) => Object.keys(run.curves)));
  const first = ["loss", ...[...found].filter((name) => /[/_]top1$/.test(name)), "watch/effective_rank", "npc/mean", "information", "query_grad/mean"];
  return [...new Set([...first.filter((name) => found.has(name)), ...[...found].sort()])];
}

function curveSection() {
  const selected = chosenRuns(), name = metric();
  const having = kept.filter((run) => Object.keys(run.curves).length);
  const runs = (selected.length ? selected : order(bestIsHigh(name) ? `-${name}` : name || "run", having)).slice(0, MOST_CURVES);
  const all = curveNames(runs);
  if (!all.length) return fill(byId("curves"));
  const usual = ["loss", ...all.filter((each) => each.endsWith("/top1")).slice(0, 1), "watch/knn_top1", "watch/effective_rank", "npc/mean", "information", "query_grad/mean"].filter((each) => all.includes(each));
  const wanted = view.names ? names(view.names) : usual;
  const says = selected.length > runs.length ? `The first ${runs.length} of ${selected.length} selected runs.` : selected.length ? `${counted(runs.length, "selected run")}.` : `The ${bestIsHigh(name) ? "best" : "first"} ${counted(runs.length, "run")} of ${having.length}; select others in the table.`;
  const smooth = el("input", { type: "range", min: "0", max: "0.95", step: "0.05", value: view.smooth, "data-focus": "smooth", id: "smooth", onchange: () => set({ smooth: smooth.value }) });
  fill(byId("curves"), el("h2", {}, "Learning curves"),
    el("div", { class: "row" }, menu("Curves", "names", all, wanted),
      choice("Over", "clock", [["epoch", "epochs"], ["step", "steps"]], view.clock),
      el("label", {}, "Smoothing", smooth, view.smooth)),
    el("p", { class: "soft" }, says),
    curvePanels(runs, wanted));
}

function curvePanels(runs, wanted) {
  return [
    legend(distinguished(runs)),
    el("div", { class: "panels" }, wanted.filter((name) => runs.some((run) => run.curves[name])).map((name) => curvePanel(runs, name))),
  ];
}

// The labels of runs without the words that all have.
function distinguished(runs) {
  const words = runs.map((run) => (run.label || run.id).split(" "));
  return words.map((its, place) => its.filter((word) => runs.length < 2 || words.some((others) => !others.includes(word))).join(" ") || runs[place].id);
}

function curvePanel(runs, name) {
  const having = runs.filter((run) => run.curves[name]);
  const counts = having.map((run) => run.curves[name]);
  const [kept, total, lost] = [0, 2, 3].map((i) => counts.reduce((sum, curve) => sum + (i ? curve[i] : curve[0].length), 0));
  const make = () => ({
    layout: layout({ title: view.clock }, {}),
    traces: runs.flatMap((run, index) => (run.curves[name] ? curve(run, name, index) : [])),
  });
  const thinned = kept < total - lost ? `${kept} of ${total} points: of each stretch the smallest and the largest. ` : "";
  return el("div", { class: "panel" }, el("h3", {}, CURVE_LABELS[name] ?? unit(name)), chart(`${name} during the training of ${having.length} runs`, make),
    thinned || lost ? el("p", { class: "soft" }, thinned, lost ? `${lost} values were not finite.` : "") : null);
}

function curve(run, name, index) {
  const [steps, values] = run.curves[name], look = style(index);
  const weight = isAccuracy(name) ? 0 : Number(view.smooth); // evaluations are few, and no noise of a batch
  const x = view.clock === "epoch" && run.steps_per_epoch ? steps.map((step) => step / run.steps_per_epoch) : steps;
  const y = values.map((value) => scaled(name, value)), few = values.length < 40;
  const label = `${plain(run.label || run.id)}<br>${plain(name)} %{y:.4g}<extra></extra>`;
  const line = { type: "scatter", x, mode: few ? "lines+markers" : "lines", marker: { symbol: look.symbol, size: 5, color: look.colour }, hovertemplate: label };
  if (!weight) return [{ ...line, y, line: { color: look.colour, dash: look.dash, width: 1.8 } }];
  return [
    { ...line, y, mode: "lines", line: { color: look.colour, width: 1 }, opacity: 0.25, hoverinfo: "skip", hovertemplate: null },
    { ...line, y: smoothed(y, weight), mode: "lines", line: { color: look.colour, dash: look.dash, width: 2.2 } },
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
