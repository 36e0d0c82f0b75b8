// A card for each experiment: how far it is, its best run, its speed, time and hardware.

function overview() {
  const cards = report.groups.map((group, place) => [group, scope.filter((run) => run.group === place)]).filter(([, runs]) => runs.length).reverse();
  const [near, rest] = [cards.slice(0, 4), cards.slice(4)];
  fill(byId("overview"), el("div", { class: "cards" }, near.map((each) => card(...each))),
    rest.length ? el("details", {}, el("summary", {}, counted(rest.length, "earlier experiment")), el("div", { class: "cards" }, rest.map((each) => card(...each)))) : null);
}

function card(group, runs) {
  const name = metrics.find((each) => runs.some((run) => isNumber(run.metrics[each]))) ?? "";
  const chosen = runs.some((run) => isNumber(run.metrics[metric()])) ? metric() : name;
  const top = best(runs, chosen);
  const speeds = runs.map((run) => run.speed).filter(isNumber);
  const seconds = runs.map((run) => run.seconds).filter(isNumber).reduce((sum, each) => sum + each, 0);
  const hardware = [...new Set(runs.map((run) => run.hardware).filter(Boolean))];
  const failed = runs.filter((run) => run.state === "failed");
  const fact = (label, value, main = "") => value && el("div", {}, el("dt", {}, label), el("dd", { class: main }, value));
  const shares = STATES.filter((each) => runs.some((run) => run.state === each)).reverse();
  const counts = shares.map((each) => [each, runs.filter((run) => run.state === each).length]);
  return el("article", { class: "card" },
    el("h3", {}, group.name),
    el("div", { class: "share", "aria-hidden": "true" }, counts.map(([each, count]) => {
      const part = el("span", { "data-state": each });
      part.style.flexGrow = count;
      return part;
    })),
    el("div", { class: "row" }, counts.map(([each, count]) => {
      const button = el("button", { type: "button", onclick: () => set({ where: `state=${each}` }), title: `Only these: state=${each}` });
      button.append(`${count} `, state(each));
      return button;
    })),
    el("dl", { class: "facts" },
      top && fact(`best ${chosen}`, isAccuracy(chosen) ? `${shown(chosen, top.metrics[chosen])} %` : shown(chosen, top.metrics[chosen]), "main"),
      speeds.length ? fact("images/s", `${number(Math.round(statistics(speeds).mean))} each`) : null,
      seconds ? fact("time of all runs", duration(seconds)) : null,
      isNumber(group.left) ? fact("left", duration(group.left)) : null,
      fact("started", when(group.started)),
      hardware.length ? fact("hardware", hardware.join(", ")) : null),
    top && el("p", {}, "Best: ", link(top, top.label || top.id)),
    top && command(top.command),
    failed.length ? el("p", {}, state("failed"), " ", link(failed[0], failed[0].label || failed[0].id), `: ${failed[0].reason}`) : null,
    group.command && el("details", {}, el("summary", {}, "The command of the whole grid"), command(group.command)));
}

// A link to a run, with the present view.
function link(run, label) {
  return el("a", { href: address({ run: run.id }), "data-focus": `run ${run.id}`, "data-run": run.id }, label);
}
