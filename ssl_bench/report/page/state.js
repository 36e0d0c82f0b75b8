// The state of the view is in the address, so that a view can be shared: #where=loss=dcl&sort=-knn/top1&run=grid/1a2b.

const DEFAULTS = {
  experiment: "", where: "", sort: "", group: "", columns: "", metric: "", axis: "", by: "", facet: "", colour: "",
  heat: "", select: "", names: "", smooth: "0", clock: "epoch", run: "", rows: "200", theme: "",
};
const view = { ...DEFAULTS };
const sections = []; // { keys, draw }: drawn again when one of the keys changes

// Lists in the address: a comma separates, and is escaped in a name.
const list = (names) => names.map((name) => name.replace(/[\\,]/g, "\\$&")).join(",");

function names(words) {
  if (!words || words === "none") return [];
  return words.match(/(?:\\.|[^,\\])+/g).map((word) => word.replace(/\\(.)/g, "$1"));
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const before = { ...view };
  for (const key of Object.keys(DEFAULTS)) view[key] = given.get(key) ?? DEFAULTS[key];
  return Object.keys(DEFAULTS).filter((key) => before[key] !== view[key]);
}

function address(changes = {}) {
  const given = Object.entries({ ...view, ...changes }).filter(([key, value]) => value !== DEFAULTS[key]);
  const plain = (part) => encodeURIComponent(part).replace(/%(2F|3D|2C)/g, decodeURIComponent);
  return `#${given.map(([key, value]) => `${key}=${plain(value)}`).join("&")}`;
}

// Change the view. Opening a run is a step that the browser's Back undoes.
function set(changes) {
  const changed = Object.keys(changes).filter((key) => view[key] !== changes[key]);
  if (!changed.length) return;
  Object.assign(view, changes);
  history[changed.includes("run") ? "pushState" : "replaceState"](null, "", address());
  draw(changed);
}

// Draw the sections that depend on the changed keys; null: all. The focus, open menus and scrolled places stay.
function draw(changed = null) {
  const before = reader();
  for (const section of sections) {
    if (changed === null || section.keys.some((key) => changed.includes(key))) section.draw();
  }
  bringBack(before);
}

const every = (selector) => [...document.querySelectorAll(selector)];

// Where the reader is in what the address does not say.
const reader = () => ({
  focus: document.activeElement?.dataset?.focus,
  open: every("details[data-open][open]").map((each) => each.dataset.open),
  scrolled: every("[data-scroll]").map((each) => [each.dataset.scroll, each.scrollTop, each.scrollLeft]),
});

function bringBack({ focus, open, scrolled }) {
  for (const each of every("details[data-open]")) each.open ||= open.includes(each.dataset.open);
  for (const [name, top, left] of scrolled) document.querySelector(`[data-scroll="${name}"]`)?.scrollTo(left, top);
  if (focus && document.activeElement?.dataset?.focus !== focus) {
    document.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
}
