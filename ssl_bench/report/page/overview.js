// A card for each experiment: how far it is, its best run, its speed, time and hardware.

function overview() {
  const shownGroups = experiment() ? [experiment()] : report.groups.toReversed();
  const cards = shownGroups.map((group) => card(group, membersOf(group)));
  const inBoxes = (some) => el("div", { class: "cards" }, some);
  const earlier = el("summary", {}, counted(cards.length - 4, "earlier experiment"));
  fill(byId("overview"), inBoxes(cards.slice(0, 4)),
    cards.length > 4 && el("details", {}, earlier, inBoxes(cards.slice(4))));
}

function card(group, runs) {
  const has = (name) => runs.some((run) => isNumber(run.metrics[name]));
  const name = has(metric()) ? metric() : metrics.find(has), top = name && best(runs, name);
  const failed = runs.find((run) => FAILED.includes(run.state));
  return el("article", { class: "card" },
    el("h3", {}, group.name),
    progress(runs),
    el("dl", { class: "facts" },
      top && fact(`best ${name} of a single run`, `${shown(name, top.metrics[name])}${about(name).share ? " %" : ""}`, "main"),
      factsOf(group, runs).filter(([, value]) => value).map(([label, value]) => fact(label, value))),
    top && [el("p", {}, "It is ", link(top)), command(top.command)],
    failed && el("p", {}, state(failed.state), " ", link(failed), `: ${failed.reason}`),
    group.command && el("details", {}, el("summary", {}, "The command of the whole grid"), command(group.command)));
}

const fact = (label, value, kind) => el("div", {}, el("dt", {}, label), el("dd", { class: kind }, value));

function factsOf(group, runs) {
  const speeds = runs.map((run) => run.speed).filter(isNumber);
  const seconds = runs.reduce((sum, run) => sum + (run.seconds ?? 0), 0);
  return [
    ["images/s", speeds.length ? `${number(Math.round(statistics(speeds).mean))} each` : ""],
    ["time of all runs", seconds ? duration(seconds) : ""], ["left", duration(group.left)],
    ["started", when(group.started)],
    ["hardware", [...new Set(runs.map((run) => run.hardware).filter(Boolean))].join(", ")],
  ];
}

// The number of runs in each state, as a bar and as buttons that keep only these.
function progress(runs) {
  const counts = report.states.toReversed().map((each) => [each, runs.filter((run) => run.state === each).length]);
  const there = counts.filter(([, count]) => count);
  const bar = el("div", { class: "share", "aria-hidden": "true" });
  for (const [name, count] of there) {
    bar.append(el("span", { "data-state": name }));
    bar.lastChild.style.flexGrow = count;
  }
  const only = (name) => ({ title: `Only these: state=${name}` });
  return [bar, row(there.map(([name, count]) =>
    button([`${count} `, state(name)], null, () => set({ where: `state=${name}` }), only(name))))];
}
