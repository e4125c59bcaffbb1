// Health: recent inputs, the drift guard, the spot checks, and every version of the model with who and why.
import { ask, recall } from "./api.js";
import { Checks, WAITING } from "./checks.js";
import { Empty, LANES, Lane, Notice, count, html, number, plural, share, useEffect, useState, when } from "./ui.js";

const EVERY = 5000; // milliseconds between two looks
const BARS = 48; // at most, however long the time
const LEAST_MINUTES = 30; // that are drawn
const WHAT = {
  add: "added to the support", add_calibration: "added to the calibration set", remove: "removed", relabel: "relabelled",
  recalibrate: "recalibrated", certify: "certified", guard_reset: "guard reset", undo: "undo", save: "saved",
};

export function Health({ model, reload }) {
  const [data, setData] = useState(null);
  const [problem, setProblem] = useState("");
  const load = async () => {
    try {
      const [recent, guard, changes, checks] = await Promise.all(["v1/recent", "v1/guard", "v1/changes", `v1/checks?most=${WAITING}`].map((path) => ask(path)));
      setData({ recent, guard: guard.guard, changes: changes.changes, checks });
      setProblem("");
      if (guard.version !== model.version) reload();
    } catch (error) {
      setProblem(error.message);
    }
  };
  useEffect(() => {
    load();
    const timer = setInterval(load, EVERY);
    return () => clearInterval(timer);
  }, [model.version]);
  const attempt = async (path, body) => {
    try {
      await ask(path, body);
      await Promise.all([load(), reload()]);
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`
    <h1>Health</h1>
    ${problem && html`<${Notice}>${problem}</${Notice}>`}
    ${!data ? !problem && html`<${Empty}>Looking…</${Empty}>` : html`
      <div class="columns even">
        <${Guard} guard=${data.guard} attempt=${attempt} />
        <${Facts} model=${model} />
      </div>
      <${Checks} checks=${data.checks.checks} drawing=${data.checks.drawing} waiting=${data.checks.waiting} attempt=${attempt} />
      <${Lately} recent=${data.recent} />
      <${Versions} changes=${data.changes} model=${model} attempt=${attempt} />`}`;
}

function Guard({ guard, attempt }) {
  if (!guard) return html`<section class="card"><h2>Drift guard</h2><p>An ensemble has none.</p></section>`;
  const alarm = guard.log_threshold, at = Math.max(0, Math.min(1.25, guard.log_martingale / alarm));
  const x = (value) => (value / 1.25) * 300;
  const submit = (event) => {
    event.preventDefault();
    attempt("v1/guard", { reason: new FormData(event.target).get("reason"), who: recall("who") || "reviewer" });
  };
  return html`
    <section class="card" aria-labelledby="guard">
      <div class="row spread"><h2 id="guard">Drift guard</h2>
        <span class="lane ${guard.raised ? "rejected" : "trusted"}"><span aria-hidden="true">${guard.raised ? "!" : "✓"}</span> ${guard.raised ? "raised" : "calm"}</span></div>
      <p>${guard.raised
        ? `Raised at input ${count(guard.raised_at)} by ${guard.raised_by.replace("_", " ")}: inputs no longer look as they did. Certified answers go to review until it is reset.`
        : guard.n_seen === 0 ? "Nothing came in yet." : `${plural(guard.n_seen, "input")} seen; nothing unusual about them.`}</p>
      <svg class="meter" viewBox="0 0 300 34" role="img" aria-label="Evidence of drift ${number(guard.log_martingale)}, alarm at ${number(alarm)}">
        <rect class="track" y="6" width="300" height="10" rx="5" />
        <rect class=${guard.raised ? "fill bad" : "fill"} y="6" width=${Math.max(5, x(at))} height="10" rx="5" />
        <line class="threshold" x1=${x(1)} x2=${x(1)} y1="0" y2="22" />
        <text x=${x(1)} y="32" text-anchor="middle">alarm</text>
      </svg>
      <p class="hint">Evidence ${number(guard.log_martingale)} against the alarm line at ${number(alarm)} (logarithms). A calm stream ever reaches it with probability at most ${number(guard.false_alarm)}.</p>
      ${guard.resets.length > 0 && html`<details><summary>${plural(guard.resets.length, "earlier reset")}</summary>
        <ul>${guard.resets.map((one) => html`<li>${one.reason} <span class="hint">(after ${plural(one.n_seen, "input")}${one.raised_at ? `, raised at ${count(one.raised_at)}` : ""})</span></li>`)}</ul></details>`}
      ${guard.raised && html`<form onSubmit=${submit}><label for="reason">Why reset it?</label>
        <div class="row"><input id="reason" name="reason" required /><button>Reset the guard</button></div></form>`}
    </section>`;
}

function Facts({ model }) {
  const { certificate } = model;
  const facts = [
    ["Version", count(model.version)], ["Training examples", count(model.n_support)], ["Calibration points", count(model.n_calibration)],
    ["Labels", model.classes.length > 6 ? count(model.classes.length) : model.classes.join(", ")],
    ["Language model", model.language_model ?? "none"],
    ["Region", model.regions[0]?.found ? `α ${model.regions[0].alpha}, ${share(model.regions[0].admitted_share)} of calibration` : `none at α ${model.regions[0]?.alpha}`],
    ["Certificate", certificate?.found ? `α ${certificate.alpha}, δ ${certificate.delta}${certificate.holds ? "" : ", suspended"}` : "none"],
  ];
  return html`
    <section class="card" aria-labelledby="facts"><h2 id="facts">The model</h2>
      <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      ${model.warnings.length > 0 && html`<details><summary>${plural(model.warnings.length, "warning")}</summary>
        <ul>${model.warnings.map((one) => html`<li>${one.what}</li>`)}</ul></details>`}
    </section>`;
}

function Lately({ recent }) {
  const buckets = bucketed(recent);
  const seen = buckets.reduce((sum, one) => sum + one.n, 0);
  const lanes = Object.keys(LANES).filter((lane) => buckets.some((one) => one.lanes[lane]));
  return html`
    <section class="card" aria-labelledby="lately">
      <h2 id="lately">Recent inputs</h2>
      <p class="hint">Inputs of <code>/v1/decide</code> since ${when(recent.started * 1000)}, at most 24 hours back. This is kept in memory until the service ends.</p>
      ${seen === 0 ? html`<${Empty}>Nothing yet.</${Empty}>` : html`
        <p class="legend">${lanes.map((lane) => html`<span><${Lane} lane=${lane} /> ${count(buckets.reduce((sum, one) => sum + (one.lanes[lane] ?? 0), 0))}</span>`)}</p>
        <div class="columns even">
          <figure><figcaption>Lanes over time</figcaption><${LaneBars} buckets=${buckets} lanes=${lanes} /></figure>
          <figure><figcaption>Distances over time</figcaption><${Distances} buckets=${buckets} /></figure>
        </div>
        <details><summary>As a table</summary><div class="scroll" tabindex="0" role="region" aria-label="What came in"><table>
          <thead><tr><th scope="col">from</th><th scope="col" class="n">inputs</th>${lanes.map((lane) => html`<th scope="col" class="n">${lane}</th>`)}<th scope="col" class="n">median distance</th><th scope="col" class="n">q = 0</th></tr></thead>
          <tbody>${buckets.filter((one) => one.n).map((one) => html`<tr><th scope="row">${clock(one.at)}</th><td class="n">${count(one.n)}</td>${lanes.map((lane) => html`<td class="n">${count(one.lanes[lane] ?? 0)}</td>`)}
            <td class="n">${number(quantile(one.distances, 0.5))}</td><td class="n">${count(one.no_similarity)}</td></tr>`)}</tbody></table></div></details>`}
    </section>`;
}

// Minutes put together so that all of the time fits into at most so many bars.
function bucketed({ minutes, now }) {
  if (!minutes.length) return [];
  const end = 60 * Math.floor(now / 60) + 60, span = Math.max(60 * LEAST_MINUTES, end - minutes[0].at);
  const wide = 60 * Math.ceil(span / BARS / 60), n = Math.ceil(span / wide), first = end - n * wide;
  const buckets = Array.from({ length: n }, (_, i) => ({ at: first + i * wide, n: 0, lanes: {}, distances: new Array(20).fill(0), no_similarity: 0 }));
  for (const minute of minutes) {
    const one = buckets[Math.floor((minute.at - first) / wide)];
    for (const [lane, n] of Object.entries(minute.lanes)) { one.lanes[lane] = (one.lanes[lane] ?? 0) + n; one.n += n; }
    minute.distances.forEach((n, i) => (one.distances[i] += n));
    one.no_similarity += minute.no_similarity;
  }
  return buckets;
}

// A quantile of a histogram over [0, 1].
function quantile(bins, p) {
  const total = bins.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let left = p * total;
  for (let i = 0; i < bins.length; i++) {
    if (bins[i] >= left && bins[i]) return (i + left / bins[i]) / bins.length;
    left -= bins[i];
  }
  return 1;
}

const WIDTH = 480, HEIGHT = 150, FOOT = 18, SIDE = 30;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });

function Frame({ label, buckets, ticks, children }) {
  return html`
    <svg class="chart" viewBox="0 0 ${WIDTH} ${HEIGHT + FOOT}" role="img" aria-label=${label}>
      ${ticks.map(({ y, text }) => html`<line class="axis" x1=${SIDE} x2=${WIDTH} y1=${y} y2=${y} /><text x=${SIDE - 5} y=${y + 4} text-anchor="end">${text}</text>`)}
      ${children}
      <text x=${SIDE} y=${HEIGHT + FOOT - 3}>${clock(buckets[0].at)}</text>
      <text x=${WIDTH} y=${HEIGHT + FOOT - 3} text-anchor="end">now</text>
    </svg>`;
}

function LaneBars({ buckets, lanes }) {
  const most = Math.max(1, ...buckets.map((one) => one.n)), wide = (WIDTH - SIDE) / buckets.length;
  const y = (n) => 8 + (HEIGHT - 8) * (1 - n / most);
  const words = lanes.map((lane) => `${lane} ${buckets.reduce((sum, one) => sum + (one.lanes[lane] ?? 0), 0)}`).join(", ");
  return html`<${Frame} label=${`Inputs over time by lane: ${words}`} buckets=${buckets} ticks=${[{ y: y(0), text: "0" }, { y: y(most), text: count(most) }]}>
    ${buckets.map((one, i) => {
      let up = 0;
      return lanes.map((lane) => {
        const n = one.lanes[lane] ?? 0, top = y(up + n), bottom = y(up);
        up += n;
        return n > 0 && html`<rect class="lane-fill ${lane}" x=${SIDE + i * wide + 1} width=${Math.max(1, wide - 2)} y=${top} height=${bottom - top}><title>${clock(one.at)}: ${lane} ${n}</title></rect>`;
      });
    })}
  </${Frame}>`;
}

// Inputs like the calibration set have their median at one half, and a tenth of them below one tenth.
function Distances({ buckets }) {
  const wide = (WIDTH - SIDE) / buckets.length, y = (d) => 8 + (HEIGHT - 8) * (1 - d);
  const drawn = buckets.map((one, i) => ({ x: SIDE + (i + 0.5) * wide, q: [0.1, 0.5, 0.9].map((p) => quantile(one.distances, p)) })).filter(({ q }) => q[1] != null);
  const last = drawn.at(-1)?.q[1];
  return html`
    <${Frame} label=${`Distance quantile over time; the latest median is ${number(last)}, one half is expected`} buckets=${buckets} ticks=${[0, 0.5, 1].map((d) => ({ y: y(d), text: String(d) }))}>
      ${drawn.map(({ x, q }) => html`<line class="spread" x1=${x} x2=${x} y1=${y(q[0])} y2=${y(q[2])} /><circle class="median" cx=${x} cy=${y(q[1])} r="3" />`)}
    </${Frame}>
    <p class="hint">Dots are medians, lines span 10 to 90 %. Expected: a median of 0.5. Lower is farther from the training data than calibration was.</p>`;
}

function Versions({ changes, model, attempt }) {
  const undo = (version) => attempt("v1/review/undo", { version, who: recall("who") || "reviewer", why: "undone on the page" });
  const last = [...changes].reverse().find((one) => one.undone_by == null && !["undo", "save", "guard_reset"].includes(one.what));
  return html`
    <section class="card" aria-labelledby="versions">
      <h2 id="versions">Versions</h2>
      ${changes.length === 0 ? html`<${Empty}>The model is as it was first saved.</${Empty}>` : html`
        <div class="scroll tall" tabindex="0" role="region" aria-label="Versions of the model"><table>
          <thead><tr><th scope="col" class="n">version</th><th scope="col">what</th><th scope="col">who</th><th scope="col">why</th><th scope="col">when</th><th scope="col"><span class="unseen">undo</span></th></tr></thead>
          <tbody>${[...changes].reverse().map((one) => html`
            <tr class=${one.undone_by != null ? "undone" : ""}>
              <th scope="row" class="n">${one.version}${one.version === model.version ? " ●" : ""}</th>
              <td>${WHAT[one.what] ?? one.what}${one.n ? ` (${count(one.n)})` : ""}${one.undone_by != null ? `, undone by ${one.undone_by}` : ""}</td>
              <td>${one.who}</td><td class="text">${one.why}</td><td>${when(one.at)}</td>
              <td>${one.undone_by == null && one.together_with === last?.together_with && html`<button type="button" class="quiet" onClick=${() => undo(one.version)} aria-label="Undo version ${one.version}">Undo</button>`}</td>
            </tr>`)}</tbody>
        </table></div>`}
    </section>`;
}
