// How far the chosen experiment is, its speed, time and hardware; and the list of all experiments.

function overview() {
  const group = experiment();
  if (!group) return fill(byId("overview"));
  const runs = membersOf(group), failed = runs.find((run) => FAILED.includes(run.state));
  const facts = factsOf(group, runs).filter(([, value]) => value);
  fill(byId("overview"), el("h2", {}, group.name), progress(runs),
    el("dl", { class: "facts" }, facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))),
    failed && el("p", {}, state(failed.state), " ", link(failed), `: ${failed.reason}`),
    group.command && el("details", {}, el("summary", {}, "The command of the whole grid"), command(group.command)));
}

function experimentList() {
  if (report.groups.length < 2) return fill(byId("experiments"));
  const finished = (group) => membersOf(group).filter((run) => run.state === "finished").length;
  const heads = ["experiment", "finished runs", "what matters", "started"];
  fill(byId("experiments"), el("h2", {}, "Experiments"),
    table("experiments", heads, report.groups.toReversed().map((group) => [
      rowHead(button(group.key || ".", `to ${group.key}`, () => { set({ experiment: group.key }); scrollTo(0, 0); },
        { "aria-pressed": String(group === experiment()) })),
      `${finished(group)} of ${group.runs.length}`, answerOf(group), when(group.started),
    ]), { class: "stack wrap" }));
}

function factsOf(group, runs) {
  const speeds = runs.map((run) => run.speed).filter(isNumber);
  const seconds = runs.reduce((sum, run) => sum + (run.seconds ?? 0), 0);
  return [
    ["images/s of a run", speeds.length ? number(Math.round(statistics(speeds).mean)) : ""],
    ["time of all runs", seconds ? duration(seconds) : ""], ["time left", duration(group.left)],
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
