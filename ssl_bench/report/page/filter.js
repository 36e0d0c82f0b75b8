// The filter: "loss=dcl,infonce, tau<0.3, failed" are conditions that all hold.

const OPERATORS = {
  "=": (value, wanted) => same(value, wanted), "!=": (value, wanted) => !same(value, wanted),
  "<": (value, wanted) => value < wanted, "<=": (value, wanted) => value <= wanted,
  ">": (value, wanted) => value > wanted, ">=": (value, wanted) => value >= wanted,
  "~": (value, wanted) => text(value).toLowerCase().includes(wanted.toLowerCase()),
};
const compares = (condition) => /[<>]/.test(condition.operator);

function same(value, wanted) {
  const words = String(wanted).trim();
  if (isNumber(value) && words !== "") return value === Number(words.replace(/^b(?=\d)/, "")); // b64 is 64
  return String(value ?? "null") === wanted;
}

// The name of a key as it was meant: "tau" is temperature.tau if nothing else ends so; null if there is no such key.
function resolve(name) {
  const known = [...Object.keys(FIELDS), ...report.metrics, ...report.keys, ...Object.keys(report.common)];
  if (known.includes(name)) return name;
  const ends = [...new Set(known.filter((each) => each.endsWith(`.${name}`) || each.endsWith(`/${name}`)))];
  return ends.length === 1 ? ends[0] : null;
}

// The conditions of a filter. A piece without an operator is one more value of the condition before it, or a word that
// stands in the label, the folder, the state or the reason.
function parseFilter(words) {
  const conditions = [];
  for (const piece of words.split(",").map((each) => each.trim()).filter(Boolean)) {
    const parts = piece.match(/^([^=<>!~]+?)\s*(!=|<=|>=|=|<|>|~)\s*(.*)$/);
    const last = conditions.at(-1);
    if (parts) conditions.push({ name: parts[1], operator: parts[2], values: [parts[3]] });
    else if (last?.operator === "=") last.values.push(piece);
    else conditions.push({ word: piece.toLowerCase() });
  }
  conditions.filter((each) => each.name).forEach(check);
  return conditions;
}

// Find the key of a condition, and its numbers; a share over 1 is in percent.
function check(condition) {
  const { name, operator, values: [wanted] } = condition;
  condition.key = resolve(name);
  if (condition.key === null) throw new Error(`no run has the key ${name}`);
  if (compares(condition)) {
    if (wanted === "" || Number.isNaN(Number(wanted))) throw new Error(`${name} ${operator} needs a number`);
    if (!report.runs.some((run) => isNumber(valueOf(run, condition.key)))) throw new Error(`${name} has no numbers`);
    condition.values = [Number(wanted)];
  }
  const inShares = (value) => (Number(value) > 1 ? Number(value) / 100 : value);
  if (about(condition.key).share) condition.values = condition.values.map(inShares);
}

function passes(run, conditions) {
  return conditions.every((condition) => {
    const words = [run.label, run.id, run.state, run.reason];
    if (condition.word) return words.some((each) => (each ?? "").toLowerCase().includes(condition.word));
    const value = valueOf(run, condition.key);
    if (compares(condition) && !isNumber(value)) return false;
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
  const values = valuesOf(alone.key, scope), many = values.length > 8;
  const words = (value) => (about(alone.key).share ? `${shown(alone.key, value)} %` : text(value));
  const range = many && values.every(isNumber) ? `${words(values[0])} to ${words(values.at(-1))}`
    : values.slice(0, 8).map(words).join(", ") + (many ? ", \u2026" : "");
  return `No run passes: ${alone.key} is ${range || "not set"} in these runs.${elsewhere}`;
}

function applyFilter() {
  const input = byId("filter"), says = byId("filter-says"), all = counted(scope.length, "run");
  if (document.activeElement !== input) input.value = view.where;
  try {
    const conditions = parseFilter(view.where);
    kept = scope.filter((run) => passes(run, conditions));
    input.removeAttribute("aria-invalid");
    const some = kept.length ? `${kept.length} of ${all}` : whyNone(conditions);
    says.textContent = kept.length === scope.length ? all : some;
  } catch (error) { // the runs stay as they were
    kept = kept.filter((run) => scope.includes(run));
    kept = kept.length ? kept : scope;
    input.setAttribute("aria-invalid", "true");
    says.textContent = error.message;
  }
}
