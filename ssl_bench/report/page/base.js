// Elements, numbers as text, and compressed data.

const byId = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const missing = (value) => value === undefined || value === null || value === "";

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

const soft = (...words) => el("p", { class: "soft" }, words);
const row = (...children) => el("div", { class: "row" }, children);
const button = (label, focus, onclick, more = {}) =>
  el("button", { type: "button", "data-focus": focus, onclick, ...more }, label);
const numeric = (words, more = "") => el("td", { class: `number ${more}` }, words);

// A table in a box that scrolls. Heads and cells are texts or elements, of which a <th> or <td> is a cell by itself. On a
// phone each row of the class "stack" is a block of its own, with its heads beside the values.
function table(name, heads, rows, attributes = {}) {
  const headOf = (place) => (typeof heads[place] === "string" ? { "data-head": heads[place] } : {});
  const cell = (tag, more) => (content, place) =>
    (/^T[DH]$/.test(content?.tagName) ? content : el(tag, more ?? headOf(place), content));
  const head = el("tr", {}, heads.map(cell("th", { scope: "col" })));
  const body = rows.map((each) => (each.tagName ? each : el("tr", {}, each.map(cell("td")))));
  const box = { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${name}`, "data-scroll": name };
  return el("div", box, el("table", attributes, el("thead", {}, head), el("tbody", {}, body)));
}

const rowHead = (words) => el("th", { scope: "row" }, words);

function number(value) {
  if (!isNumber(value)) return "";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  return String(Number(value.toPrecision(4)));
}

const text = (value) => (missing(value) ? "" : isNumber(value) ? number(value) : String(value));
const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const signed = (value, words) => (value > 0 ? `+${words}` : words);
const when = (second) => (isNumber(second) && second > 0 ? new Date(1000 * second).toLocaleString() : "");

function duration(seconds) {
  if (!isNumber(seconds)) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

// n, mean and sample deviation of numbers; the last is null for fewer than two.
function statistics(numbers) {
  const n = numbers.length, mean = numbers.reduce((sum, value) => sum + value, 0) / n;
  const squares = numbers.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { n, mean, std: n < 2 ? null : Math.sqrt(squares / (n - 1)) };
}

// The deviation within all points of a line together, which is known better than that of one point with few runs.
function pooled(points) {
  const several = points.filter(({ n }) => n > 1), degrees = several.reduce((sum, { n }) => sum + n - 1, 0);
  return degrees ? Math.sqrt(several.reduce((sum, { n, std }) => sum + (n - 1) * std ** 2, 0) / degrees) : 0;
}

// A mean with its deviation and number, each number as `form` prints it.
const meanText = ({ n, mean, std }, form) => `${form(mean)}${std === null ? "" : ` \u00b1 ${form(std)}`} (${n})`;

const option = (value, label, chosen) => el("option", { value, selected: value === chosen }, label);

// A select with a label; its choice becomes part of the address.
function choice(label, key, options) {
  const select = el("select", { "data-focus": key, onchange: () => set({ [key]: select.value }) });
  select.append(...options.map(([value, name]) => option(value, name, view[key])));
  return el("label", {}, label, select);
}

// A menu of checkboxes, which stays open while several are chosen.
function menu(title, key, all, chosen) {
  const boxes = all.map((name) => {
    const box = el("input", { type: "checkbox", checked: chosen.includes(name), "data-focus": `${key} ${name}` });
    box.addEventListener("change", () => {
      const after = all.filter((each) => (each === name ? box.checked : chosen.includes(each)));
      set({ [key]: list(after) || "none" });
    });
    return el("label", {}, box, name);
  });
  const summary = el("summary", { "data-focus": `menu ${key}` }, title);
  return el("details", { class: "menu", "data-open": key }, summary, el("div", {}, boxes));
}

// A command with a button that copies it.
function command(words) {
  if (!words) return soft("The command was not recorded.");
  const code = el("pre", {}, words);
  const copy = button("Copy", null, async () => {
    try {
      await navigator.clipboard.writeText(words);
      copy.textContent = "Copied";
    } catch { // a page from a file may not write it
      getSelection().selectAllChildren(code);
      copy.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  }, { "aria-label": "Copy the command" });
  return el("div", { class: "copy" }, code, copy);
}

const MARKS = {
  finished: "\u2713", busy: "\u25b6", "not begun": "\u2026", interrupted: "\u25d0", "evaluation missing": "\u25d1",
  failed: "\u2715", diverged: "\u2197", damaged: "\u2717",
};
const state = (name) => el("span", { class: "state", "data-state": name }, `${MARKS[name]} ${name}`);

// Compressed base64 as text.
async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
