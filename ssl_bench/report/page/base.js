// Elements, numbers as text, and compressed data.

const byId = (id) => document.getElementById(id);

// An element. Children that are texts become text nodes: nothing of a run is ever read as HTML.
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isAccuracy = (metric) => /top\d/.test(metric);

function text(value) {
  if (value === null || value === undefined) return "";
  return isNumber(value) ? number(value) : String(value);
}

function number(value) {
  if (!isNumber(value)) return "";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  return String(Number(value.toPrecision(4)));
}

const shortened = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}\u2026` : words);

// A metric as the tables print it: accuracies in percent.
const shown = (metric, value) => (!isNumber(value) ? "" : isAccuracy(metric) ? (100 * value).toFixed(1) : number(value));
const scaled = (metric, value) => (isAccuracy(metric) ? 100 * value : value);
const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const unit = (metric) => (isAccuracy(metric) ? `${metric} (%)` : metric);

function duration(seconds) {
  if (!isNumber(seconds)) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

const when = (second) => (isNumber(second) && second > 0 ? new Date(1000 * second).toLocaleString() : "");

// n, mean, sample deviation and standard error of numbers; the last two are null for fewer than two.
function statistics(numbers) {
  const n = numbers.length, mean = numbers.reduce((sum, value) => sum + value, 0) / n;
  const std = n > 1 ? Math.sqrt(numbers.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1)) : null;
  return { n, mean, std, error: std === null ? null : std / Math.sqrt(n) };
}

function meanText(metric, { n, mean, std }) {
  return `${shown(metric, mean)}${std === null ? "" : ` \u00b1 ${shown(metric, std)}`} (${n})`;
}

function option(value, label, chosen) {
  return el("option", { value, selected: value === chosen }, label);
}

// A select with a label; its choice becomes part of the address.
function choice(label, key, options, chosen) {
  const list = el("select", { "data-focus": key, onchange: () => set({ [key]: list.value }) });
  list.append(...options.map(([value, name]) => option(value, name, chosen)));
  return el("label", {}, label, list);
}

// A menu of checkboxes, which stays open while several are chosen.
function menu(title, key, names, chosen) {
  const boxes = names.map((name) => {
    const box = el("input", { type: "checkbox", checked: chosen.includes(name), "data-focus": `${key} ${name}` });
    box.addEventListener("change", () => {
      const after = names.filter((each) => (each === name ? box.checked : chosen.includes(each)));
      set({ [key]: list(after) || "none" });
    });
    return el("label", {}, box, name);
  });
  return el("details", { class: "menu", "data-open": key }, el("summary", { "data-focus": `menu ${key}` }, title), el("div", {}, boxes));
}

function command(words) {
  if (!words) return el("p", { class: "soft" }, "The command was not recorded.");
  const code = el("pre", {}, words);
  const button = el("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(words);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return el("div", { class: "copy" }, code, button);
}

const MARKS = { done: "\u2713", running: "\u25b6", waiting: "\u2026", partial: "\u25d0", failed: "\u2715" };
const state = (name) => el("span", { class: "state", "data-state": name }, `${MARKS[name]} ${name}`);

// Compressed base64 as text.
async function unpack(base64) {
  const bytes = Uint8Array.fromBase64?.(base64) ?? Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return decompress(new Blob([bytes]).stream());
}

const decompress = (stream) => new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
