// The runs: their settings and metrics by name, filters and order.

let report; // the data
let metrics = []; // names of all metrics, accuracies of the trained network first
let kept = []; // the runs that the filter keeps
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
  metrics = [...count.keys()].sort((a, b) => compareLists(rank(a), rank(b)));
  data.runs.forEach((run, place) => { run.place = place; });
  addCurves(data.curves);
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
  const known = [...Object.keys(FIELDS), ...metrics, ...report.keys, ...Object.keys(report.common)];
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
  if (isNumber(value) && wanted.trim() !== "") return value === Number(wanted);
  return String(value ?? "null") === wanted;
}

// "loss=dcl,infonce, tau<0.3, failed": conditions that all hold. A piece without an operator is one more value of the
// condition before it, or a word that stands in the label, the folder, the state or the reason.
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
      if (!report.runs.some((run) => isNumber(valueOf(run, condition.key)))) {
        const size = resolve(`${condition.key}.size`); // batch_size>=128 means the number of images
        if (size === null) throw new Error(`${condition.name} has no numbers`);
        condition.key = size;
      }
      condition.values = [Number(wanted)];
    }
  }
  return (run) => conditions.every((condition) => {
    if (condition.word) return [run.label, run.id, run.state, run.reason].some((each) => (each ?? "").toLowerCase().includes(condition.word));
    const value = valueOf(run, condition.key);
    if (/[<>]/.test(condition.operator) && !isNumber(value)) return false;
    return condition.values.some((wanted) => OPERATORS[condition.operator](value, wanted));
  });
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
