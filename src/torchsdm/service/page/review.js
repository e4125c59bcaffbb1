// Review: look at what came in, label it with one key, see what adding it would do, add it, undo it.
import { ask, download, recall, remember } from "./api.js";
import { address, adjust } from "./route.js";
import { Empty, Key, LANES, Lane, Notice, count, html, number, plural, share, useCallback, useEffect, useRef, useState } from "./ui.js";

const PAGE = 25;
const STRONG = 1; // ten times more evidence against the given label than for it
const STATUSES = { open: "To do", labelled: "Labelled", skipped: "Skipped", added: "Added" };
const ORDERS = { contradiction: "Possible label errors first", confidence: "Least confident first", distance: "Farthest first", arrival: "As they came" };

export function Review({ model, params, reload }) {
  const chosen = { status: params.status ?? "open", lane: params.lane ?? "", search: params.search ?? "", order: params.order ?? "contradiction" };
  const [filter, setFilter] = useState(chosen);
  const [page, setPage] = useState(0);
  const [data, setData] = useState(null);
  const [current, setCurrent] = useState(0);
  const [problem, setProblem] = useState("");
  const [said, setSaid] = useState("");
  const [who, setWho] = useState(recall("who") || "reviewer");
  const list = useRef(null);
  const classes = model.classes;

  const load = useCallback(async () => {
    try {
      setData(await ask(`v1/review?${new URLSearchParams({ ...filter, limit: PAGE, offset: page * PAGE })}`));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  }, [filter, page]);
  useEffect(() => { load(); }, [load, model.version]);
  useEffect(() => {
    if (!data?.counts.undecided) return;
    const timer = setTimeout(load, 800); // the model is still at work
    return () => clearTimeout(timer);
  }, [data]);
  const narrow = (change) => {
    const next = { ...filter, ...change };
    setFilter(next);
    setPage(0);
    setCurrent(0);
    adjust("review", next);
  };
  const rows = data?.rows ?? [];
  const at = Math.min(current, Math.max(0, rows.length - 1));
  const attempt = async (action) => {
    try {
      setProblem("");
      await action();
    } catch (error) {
      setProblem(error.message);
    }
  };
  const label = (row, value) => attempt(async () => {
    await ask("v1/review/label", { row: row.row, label: value, who });
    setSaid(`${value == null ? "Skipped" : `Labelled ${value}`}: ${row.text.slice(0, 60)}`);
    await load();
    list.current?.focus({ preventScroll: true });
  });
  const unlabel = () => attempt(async () => {
    const { row } = await ask("v1/review/unlabel", { who });
    setSaid(row == null ? "You have nothing to undo." : `Undone: row ${row} is back.`);
    await load();
  });
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
    const row = rows[at], digit = Number(event.key);
    const move = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (move) setCurrent(Math.max(0, Math.min(rows.length - 1, at + move)));
    else if (row && row.status !== "added" && digit >= 1 && digit <= classes.length) label(row, classes[digit - 1]);
    else if (row && row.status !== "added" && event.key === "s") label(row, null);
    else if (event.key === "u") unlabel();
    else return;
    event.preventDefault();
  };
  const handler = useRef(keys);
  handler.current = keys;
  useEffect(() => {
    const listen = (event) => handler.current(event);
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [at]);

  const counts = data?.counts;
  const total = counts ? Object.values(counts.status).reduce((a, b) => a + b, 0) : 0;
  return html`
    <h1>Review</h1>
    ${problem && html`<${Notice}>${problem}</${Notice}>`}
    ${data?.problem && html`<${Notice}>Inputs of the queue are not being decided on: ${data.problem}</${Notice}>`}
    <${Upload} attempt=${attempt} small=${total > 0} onDone=${(text) => { setSaid(text); load(); }} />
    <p class="unseen" role="status">${said}</p>
    ${counts && total > 0 && html`
      <section class="card controls" aria-label="Filter">
        <div class="tabs" role="group" aria-label="Status">
          ${Object.entries(STATUSES).map(([key, name]) => html`
            <button type="button" aria-pressed=${filter.status === key} onClick=${() => narrow({ status: key })}>${name} <span class="n">${count(counts.status[key])}</span></button>`)}
        </div>
        <label>Lane <select value=${filter.lane} onChange=${(e) => narrow({ lane: e.target.value })}>
          <option value="">all</option>${Object.keys(LANES).map((lane) => html`<option value=${lane}>${lane} (${counts.lane[lane] ?? 0})</option>`)}</select></label>
        <label>Sort <select value=${filter.order} onChange=${(e) => narrow({ order: e.target.value })}>
          ${Object.entries(ORDERS).map(([key, name]) => html`<option value=${key}>${name}</option>`)}</select></label>
        <label class="grow">Search <input type="search" value=${filter.search} onInput=${(e) => narrow({ search: e.target.value })} placeholder="text or id" /></label>
        <label>Your name <input value=${who} size="10" onInput=${(e) => { setWho(e.target.value); remember("who", e.target.value); }} required /></label>
      </section>
      <div class="columns review ${counts.status.labelled ? "ready" : ""}">
        <section aria-label="Queue">
          <p class="hint keys">${classes.slice(0, 9).map((name, i) => html`<span><${Key} name=${i + 1} /> ${String(name)}</span>`)}
            <span><${Key} name="s" /> skip</span><span><${Key} name="u" /> undo</span><span><${Key} name="↑" /> <${Key} name="↓" /> move</span></p>
          ${counts.undecided > 0 && html`<${Notice} kind="note">The model is reading ${plural(counts.undecided, "more input")}…</${Notice}>`}
          ${said && html`<p class="said-last hint" aria-hidden="true">${said} ${/^(Labelled|Skipped)/.test(said) && html`<button type="button" class="link" onClick=${unlabel}>Undo</button>`}</p>`}
          <ul class="queue" ref=${list} tabindex="-1">
            ${rows.map((row, i) => html`<${Row} key=${row.row} row=${row} isCurrent=${i === at} classes=${classes} onChoose=${() => setCurrent(i)} label=${label} />`)}
          </ul>
          ${!rows.length && html`<${Empty}>Nothing here${filter.search || filter.lane ? " with this filter" : ""}.</${Empty}>`}
          <${Pages} n=${data.n} page=${page} onPage=${(next) => { setPage(next); setCurrent(0); }} />
        </section>
        <aside aria-label="What was labelled">
          <${Adding} n=${counts.status.labelled} who=${who} attempt=${attempt} onDone=${(text) => { setSaid(text); load(); reload(); }} />
          <section class="card" aria-labelledby="export"><h2 id="export">Take it with you</h2>
            <p>What people decided, in the form that <code>sdm update --add</code> reads.</p>
            <div class="row">${["jsonl", "csv"].map((ending) => html`
              <button type="button" onClick=${() => attempt(() => download(`v1/review/export.${ending}`, `reviewed.${ending}`))}>${ending.toUpperCase()}</button>`)}
              <${Clear} attempt=${attempt} onDone=${(text) => { setSaid(text); load(); }} /></div>
          </section>
        </aside>
      </div>`}`;
}

function Upload({ attempt, small, onDone }) {
  const [busy, setBusy] = useState(false);
  const send = (body) => {
    setBusy(true);
    return attempt(async () => {
      const { added, known, unreadable } = await ask("v1/review", body);
      onDone([`${plural(added, "input")} added to the queue`, known && `${count(known)} were there already`, unreadable && `${count(unreadable)} could not be read`].filter(Boolean).join(", ") + ".");
    }).finally(() => setBusy(false));
  };
  const take = async (file) => file && send({ name: file.name, content: await file.text() });
  const drop = (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); };
  const paste = (event) => {
    event.preventDefault();
    const field = event.target.elements.lines, rows = field.value.split("\n").map((text) => text.trim()).filter(Boolean).map((text) => ({ text }));
    if (rows.length) send({ rows }).then(() => (field.value = ""));
  };
  return html`
    <section class="card upload ${small ? "small" : ""}" aria-label="Add inputs" onDragOver=${(e) => e.preventDefault()} onDrop=${drop}>
      <div class="row">
        <label class="file">${busy ? "Reading…" : "Upload a file"}<input type="file" accept=".jsonl,.csv,.tsv" disabled=${busy} onChange=${(e) => { take(e.target.files[0]); e.target.value = ""; }} /></label>
        <span class="hint">JSONL, CSV or TSV with a column <code>text</code> and optionally <code>label</code>, <code>id</code>, <code>answer</code>. Or drop it here.</span>
      </div>
      <details><summary>Paste texts</summary>
        <form onSubmit=${paste}><label for="lines">One input per line</label><textarea id="lines" name="lines" rows="3"></textarea><button disabled=${busy}>Add to the queue</button></form>
      </details>
    </section>`;
}

function Row({ row, isCurrent, classes, onChoose, label }) {
  const decision = row.decision, contradicted = row.contradiction >= STRONG;
  return html`
    <li class="card ${isCurrent ? "current" : ""}" aria-current=${isCurrent ? "true" : undefined} onClick=${onChoose}>
      <p class="text">${row.text}</p>
      ${row.answer && html`<p class="text hint">Answer: ${row.answer}</p>`}
      <p class="meta">
        ${decision ? html`<${Lane} lane=${decision.lane} />` : html`<span class="hint">not read yet</span>`}
        ${decision?.prediction != null && html`<span>model: <b>${String(decision.prediction)}</b> <span class="hint">confidence ${number(decision.confidence)}</span></span>`}
        ${row.given != null && html`<span>came as: <b>${String(row.given)}</b></span>`}
        ${row.label != null && html`<span>${row.who}: <b>${String(row.label)}</b></span>`}
        ${row.status === "added" && html`<span class="hint">added in version ${row.added}</span>`}
      </p>
      ${contradicted && html`<p class="contradicted"><span aria-hidden="true">⚠</span> Possible label error: the model contradicts “${String(row.given)}” (${row.contradiction.toFixed(1)}).</p>`}
      ${decision?.lane === "rejected" && html`<p class="hint">${decision.reason}</p>`}
      ${row.status !== "added" && html`<div class="row labels">
        ${classes.slice(0, 9).map((name) => html`<button type="button" aria-pressed=${String(row.label) === String(name)} onClick=${() => label(row, name)}>${String(name)}</button>`)}
        ${classes.length > 9 && html`<label><span class="unseen">another label</span><select onChange=${(e) => label(row, classes[Number(e.target.value)])}><option>more…</option>${classes.slice(9).map((name, i) => html`<option value=${i + 9}>${String(name)}</option>`)}</select></label>`}
        <button type="button" class="quiet" onClick=${() => label(row, null)}>skip</button>
        <a href=${address("try", { text: row.text, answer: row.answer })}>why?</a>
      </div>`}
    </li>`;
}

function Pages({ n, page, onPage }) {
  const last = Math.ceil(n / PAGE) - 1;
  if (last < 1) return null;
  return html`
    <nav class="row pages" aria-label="Pages of the queue">
      <button type="button" disabled=${page === 0} onClick=${() => onPage(page - 1)}>Earlier</button>
      <span>${count(page * PAGE + 1)}–${count(Math.min(n, (page + 1) * PAGE))} of ${count(n)}</span>
      <button type="button" disabled=${page >= last} onClick=${() => onPage(page + 1)}>Later</button>
    </nav>`;
}

// Nothing is added before its effect was seen.
function Adding({ n, who, attempt, onDone }) {
  const [effect, setEffect] = useState(null);
  const [added, setAdded] = useState(null);
  const [busy, setBusy] = useState(false);
  const [why, setWhy] = useState("");
  const [recalibrate, setRecalibrate] = useState(true);
  const heading = useRef(null);
  useEffect(() => setEffect(null), [n, recalibrate]);
  const during = (action) => { setBusy(true); return attempt(action).finally(() => setBusy(false)); };
  const preview = () => during(async () => {
    setEffect(await ask("v1/review/preview", { recalibrate }));
    heading.current?.focus();
  });
  const add = (event) => {
    event.preventDefault();
    during(async () => {
      const { versions, n: made } = await ask("v1/review/add", { who, why: why.trim() || "reviewed", recalibrate });
      setAdded({ version: versions[0], n: made });
      setEffect(null);
      onDone(`${plural(made, "example")} added to the model, version ${versions.at(-1)}.`);
    });
  };
  const undo = () => during(async () => {
    await ask("v1/review/undo", { version: added.version, who, why: "undone in review" });
    onDone(`Version ${added.version} is undone; its ${plural(added.n, "example")} are labelled as before.`);
    setAdded(null);
  });
  return html`
    <section class="card" aria-labelledby="adding">
      <h2 id="adding">Teach the model</h2>
      ${added && html`<${Notice} kind="good">${plural(added.n, "example")} added in version ${added.version}. <button type="button" class="quiet" onClick=${undo} disabled=${busy}>Undo</button></${Notice}>`}
      ${n === 0
        ? html`<p>Nothing is labelled yet. What you label is kept at once, and added to the model only when you say so.</p>`
        : html`
          <p><strong>${plural(n, "input")}</strong> labelled and not yet added.</p>
          <label class="check"><input type="checkbox" checked=${recalibrate} onChange=${(e) => setRecalibrate(e.target.checked)} /> Recalibrate afterwards</label>
          ${!effect && html`<button type="button" class="main" onClick=${preview} disabled=${busy}>${busy ? "Trying…" : "See the effect"}</button>`}
          <div ref=${heading} tabindex="-1" aria-live="polite">${effect && html`<${Effect} effect=${effect} />`}</div>
          ${effect && html`
            <form onSubmit=${add}>
              <label for="why">Why?</label><input id="why" value=${why} onInput=${(e) => setWhy(e.target.value)} placeholder="reviewed" />
              <div class="row"><button class="main" disabled=${busy}>${busy ? "Adding…" : `Add ${plural(effect.n, "example")}`}</button>
              <button type="button" class="quiet" onClick=${() => setEffect(null)}>Not now</button></div>
            </form>`}`}
    </section>`;
}

function Effect({ effect: { before, after, lanes, n, known } }) {
  const moved = lanes.filter((one) => one.before !== one.after);
  const inLane = (side, lane) => lanes.filter((one) => one[side] === lane).reduce((sum, one) => sum + one.n, 0);
  const rest = lanes.reduce((sum, one) => sum + one.n, 0);
  const Line = ({ name, a, b, as = count }) => html`
    <tr class=${a !== b ? "strong" : ""}><th scope="row">${name}</th><td class="n">${as(a)}</td><td class="n">${a === b ? "" : b > a ? "▲ " : "▼ "}${as(b)}</td></tr>`;
  return html`
    <h3>What adding ${plural(n, "example")} would do</h3>
    <table>
      <thead><tr><th scope="col"><span class="unseen">what</span></th><th scope="col" class="n">now</th><th scope="col" class="n">then</th></tr></thead>
      <tbody>
        <${Line} name="support" a=${before.n_support} b=${after.n_support} />
        <${Line} name="calibration set in the region" a=${before.region_share} b=${after.region_share} as=${share} />
        ${after.admitted_share != null && html`<${Line} name="certification sample admitted" a=${before.admitted_share} b=${after.admitted_share} as=${share} />`}
        ${Object.keys(LANES).filter((lane) => inLane("before", lane) || inLane("after", lane)).map((lane) => html`
          <${Line} name=${`queue: ${lane}`} a=${inLane("before", lane)} b=${inLane("after", lane)} />`)}
      </tbody>
    </table>
    ${known > 0 && html`<p>${plural(known, "labelled input")} of the model's own training or calibration data ${known === 1 ? "is" : "are"} left out.</p>`}
    <p class="hint">${moved.length
      ? `Of the other ${plural(rest, "input")} of the queue, ${moved.map((one) => `${one.n} would go from ${one.before} to ${one.after}`).join(", ")}.`
      : `None of the other ${plural(rest, "input")} of the queue would change lanes.`}
      ${after.admitted_share != null ? " Who chooses between updates by the certification sample spends a delta on each." : ""}</p>`;
}

function Clear({ attempt, onDone }) {
  const [sure, setSure] = useState(false);
  const clear = () => attempt(async () => {
    const { removed } = await ask("v1/review", undefined, "DELETE");
    setSure(false);
    onDone(`${plural(removed, "input")} removed from the queue.`);
  });
  return sure
    ? html`<button type="button" class="danger" onClick=${clear}>Remove all that was not added</button><button type="button" class="quiet" onClick=${() => setSure(false)}>Keep</button>`
    : html`<button type="button" class="quiet" onClick=${() => setSure(true)}>Empty the queue…</button>`;
}
