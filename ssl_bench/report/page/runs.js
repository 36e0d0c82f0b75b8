// The runs in view, their settings and metrics by name, their order and their groups.

let report; // the data
let scope = []; // the runs of the chosen experiment
let kept = []; // those of them that the filter keeps
let metrics = []; // names of the metrics in scope, those that runs are told by first
let settings = []; // names of the settings in which the runs in scope differ,
let main = []; // and those of them that a table shows
const ALL = "*"; // all experiments
const FAILED = ["failed", "diverged", "damaged"]; // states with a reason
const FIELDS = {
  state: (run) => run.state, folder: (run) => run.folder, label: (run) => run.label, run: (run) => run.id,
  epoch: (run) => run.epoch, speed: (run) => run.speed, seconds: (run) => run.seconds, reason: (run) => run.reason,
};
const FIELD_NAMES = { speed: "images/s", seconds: "time" };

// The curves of the runs, in their order; they come after the runs.
function addCurves(curves) {
  report.runs.forEach((run, place) => { run.curves = curves[place]; });
}

// The chosen experiment; the newest if none is chosen, all if several were named when the report was made.
function experiment() {
  if (view.experiment === ALL || (report.whole && !view.experiment && report.groups.length > 1)) return null;
  return report.groups.find((each) => each.key === view.experiment) ?? report.groups.at(-1);
}

const membersOf = (group) => group.runs.map((place) => report.runs[place]);

function applyExperiment() {
  const chosen = experiment();
  scope = chosen ? membersOf(chosen) : report.runs;
  metrics = report.metrics.filter((name) => scope.some((run) => name in run.metrics));
  const begun = scope.filter((run) => run.folder && run.state !== "damaged"); // of others not all settings are known
  settings = report.keys.filter((key) => differ(key, begun.length ? begun : scope));
  main = settings.filter((key) => report.shown.includes(key) || key === "dataset"); // a plot mixes no data sets
}

const byName = (id) => report.runs.find((run) => run.id === id);
const chosenRuns = () => names(view.select).map(byName).filter(Boolean);

function valueOf(run, name) {
  if (name in FIELDS) return FIELDS[name](run);
  const place = report.keys.indexOf(name);
  if (place >= 0) return run.values[place];
  return name in report.common ? report.common[name] : run.metrics[name];
}

const isSeed = (key) => /(^|\.)seed$/.test(key);
const differ = (key, runs) => new Set(runs.map((run) => text(valueOf(run, key)))).size > 1;

// What the evaluator of a metric says about it: { share, better, usual }; better is 1, -1 or 0 for neither.
const about = (name) => report.meanings[name] ?? { share: false, better: 0 };
const metric = () => (metrics.includes(view.metric) ? view.metric : metrics[0] ?? "");
const scaled = (name, value) => (about(name).share ? 100 * value : value);
const unit = (name) => (about(name).share ? `${name} (%)` : name);

// A number of a metric as the tables print it: shares in percent.
function shown(name, value) {
  if (!isNumber(value)) return "";
  return about(name).share ? (100 * value).toFixed(1) : number(value);
}

// The metrics that say which run is better, of the trained network; all if there is none.
function usualMetrics(most) {
  const usual = metrics.filter((name) => about(name).usual);
  return (usual.length ? usual : metrics).slice(0, most);
}

// The key that sorts runs by a metric with the best first; as it is if neither is better.
const bestFirst = (name) => (about(name).better > 0 ? `-${name}` : name);

function best(runs, name) {
  const having = runs.filter((run) => isNumber(run.metrics[name]));
  return having.length && about(name).better ? order(bestFirst(name), having)[0] : null;
}

const collator = new Intl.Collator("en", { numeric: true });

// Runs sorted by a key, "-key" in reverse. Numbers come before texts; nothing comes last in either order.
function order(key, runs) {
  const name = key.replace(/^-/, ""), sign = key.startsWith("-") ? -1 : 1;
  const value = (run) => (name === "state" ? report.states.indexOf(run.state) : valueOf(run, name));
  return [...runs].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    if (isNumber(x) !== isNumber(y)) return isNumber(x) ? -1 : 1;
    return sign * (isNumber(x) ? x - y : collator.compare(String(x), String(y)));
  });
}

// The values that runs have of a key, each once and in order.
function valuesOf(key, runs) {
  return [...new Set(order(key, runs).map((run) => valueOf(run, key)))].filter((value) => !missing(value));
}

// Runs with the same values of keys: [values, runs] in the order of the values.
function grouped(keys, runs) {
  const groups = new Map();
  for (const run of keys.reduceRight((sorted, key) => order(key, sorted), runs)) {
    const values = keys.map((key) => valueOf(run, key)), name = JSON.stringify(values);
    if (!groups.has(name)) groups.set(name, [values, []]);
    groups.get(name)[1].push(run);
  }
  return [...groups.values()];
}

// The keys that vary among runs, without those that divide them just as an earlier one does.
function independent(keys, runs) {
  const seen = new Set();
  return keys.filter((key) => {
    const values = runs.map((run) => text(valueOf(run, key)));
    const division = values.map((value) => values.indexOf(value)).join(" ");
    if (!values.some((value) => value !== values[0]) || seen.has(division)) return false;
    seen.add(division);
    return true;
  });
}

// Runs without the copies of others, which have their run_id and would count twice in a mean.
function once(runs) {
  const seen = new Set(), name = (run) => (run.folder ? run.id.split("/").at(-1) : run.id);
  return runs.filter((run) => !seen.has(name(run)) && seen.add(name(run)));
}

const withValues = (keys, values) => keys.map((key, i) => `${key}=${text(values[i])}`).join(" ");

// A link to a run, with the present view.
function link(run, label = run.label || run.id) {
  return el("a", { href: address({ run: run.id }), "data-focus": `run ${run.id}`, "data-run": run.id }, label);
}
