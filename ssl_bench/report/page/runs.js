// The runs: their settings and metrics by name, filters and order.

let report; // the data
let scope = []; // the runs of the chosen experiment
let allMetrics = []; // names of the metrics of all runs, accuracies of the trained network first,
let metrics = []; // and of those in scope
let settings = []; // names of the settings in which they differ,
let main = []; // and those of them that a table shows
let kept = []; // the runs in scope that the filter keeps
const ALL = "*"; // all experiments
const STATES = ["running", "failed", "partial", "waiting", "done"];
const FIELDS = {
  state: (run) => run.state, folder: (run) => run.folder, label: (run) => run.label, run: (run) => run.id,
  epoch: (run) => run.epoch, speed: (run) => run.speed, seconds: (run) => run.seconds, reason: (run) => run.reason,
};
const FIELD_NAMES = { speed: "images/s", seconds: "time" };

function load(data) {
  report = data;
  const count = new Map();
  for (const run of data.runs) for (const name of Object.keys(run.metrics)) count.set(name, (count.get(name) ?? 0) + 1);
  const baseline = (name) => /_(init|raw)\//.test(name);
  const rank = (name) => [baseline(name), !name.endsWith("/top1"), !isAccuracy(name), -count.get(name)];
  allMetrics = [...count.keys()].sort((a, b) => compareLists(rank(a), rank(b)));
  data.runs.forEach((run, place) => { run.place = place; });
  addCurves(data.curves);
}

// The chosen experiment; the newest if none is chosen, all if runs were named when the report was made.
const experiment = () => (view.experiment === ALL || (report.whole && !view.experiment) ? null : report.groups.find((each) => each.key === view.experiment) ?? report.groups.at(-1));

function applyExperiment() {
  const chosen = experiment();
  scope = chosen ? report.runs.filter((run) => report.groups[run.group] === chosen) : report.runs;
  metrics = allMetrics.filter((name) => scope.some((run) => name in run.metrics));
  const begun = scope.filter((run) => run.folder), known = begun.length ? begun : scope; // others have only what their command sets
  settings = report.keys.filter((key) => new Set(known.map((run) => text(valueOf(run, key)))).size > 1);
  main = settings.filter((key) => report.shown.includes(key) || key === "dataset"); // a plot mixes no data sets
}

// The curves of the runs, in their order; they may come after the runs.
function addCurves(curves) {
  report.runs.forEach((run, place) => { run.curves = curves?.[place] ?? {}; });
}

function compareLists(a, b) {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

const metric = () => (metrics.includes(view.metric) ? view.metric : metrics[0] ?? "");
const bestIsHigh = (name) => isAccuracy(name);
const byName = (id) => report.runs.find((run) => run.id === id);

// The name of a key as it was meant: "tau" is temperature.tau if nothing else ends so; null if there is no such key.
function resolve(name) {
  const known = [...Object.keys(FIELDS), ...allMetrics, ...report.keys, ...Object.keys(report.common)];
  if (known.includes(name)) return name;
  const ends = [...new Set(known.filter((each) => each.endsWith(`.${name}`) || each.endsWith(`/${name}`)))];
  return ends.length === 1 ? ends[0] : null;
}

function valueOf(run, name) {
  if (name in FIELDS) return FIELDS[name](run);
  const place = report.keys.indexOf(name);
  if (place >= 0) return run.values[place];
  return name in report.common ? report.common[name] : run.metrics[name];
}

const OPERATORS = {
  "=": (value, wanted) => same(value, wanted), "!=": (value, wanted) => !same(value, wanted),
  "<": (value, wanted) => value < wanted, "<=": (value, wanted) => value <= wanted,
  ">": (value, wanted) => value > wanted, ">=": (value, wanted) => value >= wanted,
  "~": (value, wanted) => text(value).toLowerCase().includes(wanted.toLowerCase()),
};

function same(value, wanted) {
  if (isNumber(value) && String(wanted).trim() !== "") return value === Number(String(wanted).replace(/^b(?=\d)/, "")); // b64 is 64
  return String(value ?? "null") === wanted;
}

// "loss=dcl,infonce, tau<0.3, failed": conditions that all hold. A piece without an operator is one more value of the
// condition before it, or a word that stands in the label, the folder, the state or the reason. An accuracy over 1 is in
// percent.
function parseFilter(words) {
  const conditions = [];
  for (const piece of words.split(",").map((each) => each.trim()).filter(Boolean)) {
    const parts = piece.match(/^([^=<>!~]+?)\s*(!=|<=|>=|=|<|>|~)\s*(.*)$/);
    const last = conditions.at(-1);
    if (!parts && last?.operator === "=") last.values.push(piece);
    else if (!parts) conditions.push({ word: piece.toLowerCase() });
    else conditions.push({ name: parts[1], operator: parts[2], values: [parts[3]] });
  }
  for (const condition of conditions.filter((each) => each.name)) {
    const wanted = condition.values[0];
    condition.key = resolve(condition.name);
    if (condition.key === null) throw new Error(`no run has the key ${condition.name}`);
    if (/[<>]/.test(condition.operator)) {
      if (wanted === "" || Number.isNaN(Number(wanted))) throw new Error(`${condition.name} ${condition.operator} needs a number`);
      if (!report.runs.some((run) => isNumber(valueOf(run, condition.key)))) throw new Error(`${condition.name} has no numbers`);
      condition.values = [Number(wanted)];
    }
    if (isAccuracy(condition.key)) condition.values = condition.values.map((value) => (Number(value) > 1 ? Number(value) / 100 : value));
  }
  return conditions;
}

function passes(run, conditions) {
  return conditions.every((condition) => {
    if (condition.word) return [run.label, run.id, run.state, run.reason].some((each) => (each ?? "").toLowerCase().includes(condition.word));
    const value = valueOf(run, condition.key);
    if (/[<>]/.test(condition.operator) && !isNumber(value)) return false;
    return condition.values.some((wanted) => OPERATORS[condition.operator](value, wanted));
  });
}

// Why no run in scope passes: the values that the runs have where one condition alone keeps none.
function whyNone(conditions) {
  const others = report.runs.filter((run) => passes(run, conditions)).length;
  const elsewhere = others ? ` ${counted(others, "run")} of other experiments would pass.` : "";
  const alone = conditions.find((each) => !scope.some((run) => passes(run, [each])));
  if (!alone) return `No run passes all conditions, though each alone keeps some.${elsewhere}`;
  if (alone.word) return `No run has the word ${alone.word} in its name, state or reason.${elsewhere}`;
  const values = [...new Set(order(alone.key, scope).map((run) => valueOf(run, alone.key)).filter((value) => value !== undefined && value !== null))];
  const range = values.length > 8 && values.every(isNumber) ? [values[0], values.at(-1)] : values;
  const words = range.slice(0, 8).map((value) => (isNumber(value) && isAccuracy(alone.key) ? `${shown(alone.key, value)} %` : text(value))).join(range === values ? ", " : " to ");
  return `No run passes: ${alone.key} is ${words || "not set"}${range.length > 8 ? ", \u2026" : ""} in these runs.${elsewhere}`;
}

// Numbers before texts; nothing comes last, whichever the order.
const collator = new Intl.Collator("en", { numeric: true });

function order(key, runs) {
  const name = key.replace(/^-/, ""), sign = key.startsWith("-") ? -1 : 1;
  const missing = (value) => value === undefined || value === null || value === "";
  const values = new Map(runs.map((run) => [run, name === "state" ? STATES.indexOf(run.state) : valueOf(run, name)]));
  return [...runs].sort((a, b) => {
    const [x, y] = [values.get(a), values.get(b)];
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    if (isNumber(x) !== isNumber(y)) return isNumber(x) ? -1 : 1;
    return sign * (isNumber(x) ? x - y : collator.compare(String(x), String(y)));
  });
}

function best(runs, name) {
  const having = runs.filter((run) => isNumber(run.metrics[name]));
  if (!having.length || !bestIsHigh(name)) return null;
  return having.reduce((a, b) => (b.metrics[name] > a.metrics[name] ? b : a));
}

// Runs with the same values of keys: [values, runs] in the order of the values.
function grouped(keys, runs) {
  const groups = new Map();
  for (const run of keys.reduceRight((sorted, key) => order(key, sorted), runs)) {
    const values = keys.map((key) => valueOf(run, key));
    const name = JSON.stringify(values);
    if (!groups.has(name)) groups.set(name, [values, []]);
    groups.get(name)[1].push(run);
  }
  return [...groups.values()];
}

// Names of the keys that vary among runs, without those that divide them just as an earlier one does.
function independent(keys, runs) {
  const seen = new Set();
  return keys.filter((key) => {
    const numbers = new Map();
    const division = runs.map((run) => {
      const value = text(valueOf(run, key));
      if (!numbers.has(value)) numbers.set(value, numbers.size);
      return numbers.get(value);
    }).join(" ");
    if (numbers.size < 2 || seen.has(division)) return false;
    seen.add(division);
    return true;
  });
}
