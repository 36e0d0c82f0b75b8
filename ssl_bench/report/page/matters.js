// The answer of an experiment: of each setting that varies its largest difference, with an interval and a verdict.

function mattersSection() {
  const found = experiment()?.matters[metric()];
  if (!found) return fill(byId("matters"));
  fill(byId("matters"), el("h2", {}, "What matters"), el("p", {}, found.title),
    found.rows.length > 0 && table("what matters", found.columns,
      found.rows.map(([name, ...rest]) => [rowHead(name), ...rest]), { class: "stack" }),
    found.notes.map((note, i) => soft(`[${i + 1}] ${note}`)), found.below.map((line) => soft(line)),
    soft("As ssl-bench compare says it, of all runs of the experiment: no filter changes it."));
}

// The answer in one line: the settings that matter, each with its largest difference and interval.
function answerOf(group) {
  const found = group.matters[metric()] ?? Object.values(group.matters)[0];
  if (!found?.rows.length) return found?.title ?? "";
  const sure = found.rows.filter((row) => row.at(-1).startsWith("matters"));
  return sure.map((row) => row.slice(0, 3).join(" ")).join("; ") || "no setting is shown to matter";
}
