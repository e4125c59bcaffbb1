// Map: calibration points and the review queue, and what a region of another alpha would admit.
import { ask } from "./api.js";
import { Plot, scales } from "./plot.js";
import { address, adjust, go } from "./route.js";
import { Empty, Notice, count, html, number, plural, share, useEffect, useMemo, useState } from "./ui.js";

const MOST_PANELS = 6, MOST_LISTED = 100;

export function CalibrationMap({ model, params }) {
  const [data, setData] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    Promise.all([ask("v1/map"), ask("v1/review/points")])
      .then(([map, queue]) => setData({ ...map, sets: { calibration: calibrationPoints(map.points), queue: queuePoints(queue) } }))
      .catch((error) => setProblem(error.message));
  }, [model.version]);
  if (problem) return html`<h1>Map</h1><${Notice}>${problem}</${Notice}>`;
  if (!data) return html`<h1>Map</h1><${Empty}>Computing the regions…</${Empty}>`;
  return html`<${Drawn} data=${data} params=${params} model=${model} />`;
}

function calibrationPoints(points) {
  const labels = Int16Array.from(points.labels), predictions = Int16Array.from(points.predictions);
  return points_of(points, labels, predictions, (i) => i);
}

function queuePoints(queue) {
  // What a person said counts more than the label that the row came with.
  const labels = Int16Array.from(queue.label, (label, i) => (label >= 0 ? label : queue.given[i]));
  return { ...points_of(queue, labels, Int16Array.from(queue.prediction), (i) => queue.row[i]), lane: queue.lane };
}

function points_of({ confidence, rescaled_similarity: similarity, score, certified }, labels, predictions, name) {
  return {
    labels, predictions, name, length: labels.length,
    confidence: Float64Array.from(confidence), similarity: Float64Array.from(similarity),
    score: score?.[0] == null ? null : Float64Array.from(score), certified: certified && Uint8Array.from(certified),
  };
}

// What the region admits, over all or of one prediction: Eq. 9, counted.
export function admittedBy(region, points, c = -1) {
  const { similarity, confidence, predictions, labels } = points;
  const result = { n: 0, admitted: 0, judged: 0, right: 0 };
  const lowest = region.min_rescaled_similarity ?? Infinity;
  for (let i = 0; i < points.length; i++) {
    const y = predictions[i];
    if (c >= 0 && y !== c) continue;
    result.n++;
    if (similarity[i] < lowest || !(confidence[i] >= (region.thresholds[y] ?? Infinity))) continue;
    result.admitted++;
    if (labels[i] < 0) continue;
    result.judged++;
    if (labels[i] === y) result.right++;
  }
  return result;
}

function certifiedOf(points) {
  const result = { n: points.length, admitted: 0, judged: 0, right: 0 };
  for (let i = 0; i < points.length; i++) if (points.certified[i]) {
    result.admitted++; result.judged++;
    if (points.labels[i] === points.predictions[i]) result.right++;
  }
  return result;
}

function Drawn({ data, params, model }) {
  const { regions, classes, certificate, sets } = data;
  const own = regions.findIndex((one) => one.alpha === data.region.alpha && !!one.class_alphas === regions.some((r) => r.class_alphas));
  const asked = regions.findIndex((one) => String(one.alpha) === params.alpha);
  const [position, setPosition] = useState(asked >= 0 ? asked : Math.max(own, 0));
  const [set, setSet] = useState(params.set === "queue" && sets.queue.length ? "queue" : "calibration");
  const [axis, setAxis] = useState(params.axis === "score" && certificate ? "score" : "confidence");
  const [chosen, setChosen] = useState({ title: "", positions: [] });
  const region = regions[position], points = sets[set];

  const keep = (change) => adjust("map", { set, axis, alpha: region.alpha, ...change });
  const slide = (event) => setPosition(Number(event.target.value));
  const most = useMemo(() => Math.max(1, ...[points.similarity.reduce((a, b) => Math.max(a, b), 0)].map(scales.similarity)) * 1.02, [points]);
  const panels = useMemo(() => panelsOf(points, classes, axis), [points, axis]);
  const predicted = useMemo(() => new Set(points.predictions).size, [points]);
  const counted = useMemo(() => ({ all: admittedBy(region, points), by: panels.map((one) => admittedBy(region, points, one.c)) }), [region, points, panels]);
  const corner = (c) => {
    if (axis === "score") return certificate?.thresholds[c] == null ? null : { x: 0, y: scales.share(certificate.thresholds[c]) };
    return region.found && region.thresholds[c] != null ? { x: scales.similarity(region.min_rescaled_similarity), y: scales.share(region.thresholds[c]) } : null;
  };
  const list = (title, wanted) => setChosen({ title, positions: filtered(points, wanted) });
  const isIn = (i) => points.similarity[i] >= (region.min_rescaled_similarity ?? Infinity) && points.confidence[i] >= (region.thresholds[points.predictions[i]] ?? Infinity);
  const pick = (i) => open(points, set, i).then((text) => (text ? go("try", { text }) : setChosen({ title: "The point you picked", positions: [i] })));

  return html`
    <h1>Map</h1>
    <section class="card controls" aria-label="What is drawn">
      <div class="slider">
        <label for="alpha">Target accuracy α <output for="alpha">${region.alpha}</output></label>
        <input id="alpha" type="range" min="0" max=${regions.length - 1} value=${position} onInput=${slide} onChange=${() => keep({})} disabled=${axis === "score"}
          aria-valuetext="alpha ${region.alpha}, ${region.found ? `admits ${share(counted.all.admitted / Math.max(1, counted.all.n))}` : "no region"}" />
        <p class="hint">${position === own ? "The model's own region." : html`The model's own is ${regions[own]?.alpha}. <button type="button" class="link" onClick=${() => { setPosition(own); keep({ alpha: regions[own].alpha }); }}>Back to it</button>`}
          ${" "}Moving it changes nothing in the model: <code>sdm recalibrate</code> does.</p>
      </div>
      <fieldset><legend>Points</legend>
        ${Object.entries({ calibration: "Calibration set", queue: "Review queue" }).map(([key, name]) => html`
          <label><input type="radio" name="set" checked=${set === key} disabled=${!sets[key].length} onChange=${() => { setSet(key); setChosen({ title: "", positions: [] }); keep({ set: key }); }} /> ${name} <span class="hint">${count(sets[key].length)}</span></label>`)}
      </fieldset>
      <fieldset><legend>Height</legend>
        ${Object.entries({ confidence: "Confidence: region", score: "Reliability: certificate" }).map(([key, name]) => html`
          <label><input type="radio" name="axis" checked=${axis === key} disabled=${key === "score" && !(certificate && points.score)} onChange=${() => { setAxis(key); keep({ axis: key }); }} /> ${name}</label>`)}
      </fieldset>
    </section>
    ${data.n_rounds > 1 && html`<${Notice} kind="note">This is an ensemble of ${data.n_rounds} rounds; the map is that of the first.</${Notice}>`}
    <section class="card" aria-labelledby="admitted">
      <h2 id="admitted">What is admitted ${set === "queue" ? "of the queue" : "of the calibration set"}</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="What is admitted"><table class="stats" aria-live="polite">
        <thead><tr><th scope="col">rule</th><th scope="col" class="n">admitted</th><th scope="col" class="n">share</th><th scope="col" class="n">right</th></tr></thead>
        <tbody>
          <${Stat} name="region at α ${region.alpha}" of=${counted.all} none=${!region.found} strong />
          ${counted.by.map((one, i) => html`<${Stat} name=${`predicted ${classes[panels[i].c]}`} of=${one} none=${!region.found} />`)}
          ${certificate && points.certified && html`<${Stat} name="certificate at α ${certificate.alpha}, δ ${certificate.delta}" of=${certifiedOf(points)} strong />`}
        </tbody>
      </table></div>
      <p class="hint">${certificate
        ? `The certificate belongs to α ${certificate.alpha}; it is drawn as it is and does not move with the slider.`
        : "This model has no certificate."}
        ${set === "calibration" ? " The region was found on these very points, so new inputs will fare worse." : " Only rows with a label count as right or wrong."}</p>
    </section>
    <p class="legend"><span class="key right">■ right</span><span class="key wrong">✕ wrong</span>${set === "queue" && html`<span class="key unknown">○ no label</span>`}
      <span class="key tint">${axis === "score" ? "certified" : "in the region"}</span><span class="hint">Drag over points to list them, click one to inspect it.</span></p>
    <div class="panels">
      ${panels.map((one) => html`<${Plot} key=${`${set}${axis}${one.c}`} title=${`predicted ${classes[one.c]} (${count(one.points.x.length)})`} points=${one.points} most=${most}
        region=${corner(one.c)} yName=${axis === "score" ? "reliability" : "confidence"}
        onBrush=${(found) => setChosen({ title: "Points under the brush", positions: found.map((i) => one.positions[i]) })}
        onPick=${(i) => pick(one.positions[i])} />`)}
    </div>
    ${panels.length < predicted && html`<p class="hint">The ${MOST_PANELS} predictions with the most points are drawn; the table counts all.</p>`}
    <section class="card" aria-labelledby="listed">
      <h2 id="listed">List points</h2>
      <div class="row">
        <button type="button" onClick=${() => list("Admitted and wrong", (i) => isIn(i) && points.labels[i] >= 0 && points.labels[i] !== points.predictions[i])}>Admitted and wrong</button>
        <button type="button" onClick=${() => list("Admitted", isIn)}>Admitted</button>
        <button type="button" onClick=${() => list("Not admitted", (i) => !isIn(i))}>Not admitted</button>
      </div>
      <div aria-live="polite">${chosen.title && html`<${Listed} ...${chosen} set=${set} points=${points} classes=${classes} />`}</div>
    </section>`;
}

function Stat({ name, of, none, strong }) {
  return html`
    <tr class=${strong ? "strong" : ""}><th scope="row">${name}</th>
      ${none ? html`<td class="n" colspan="3">no region</td>` : html`
        <td class="n">${count(of.admitted)} of ${count(of.n)}</td><td class="n">${share(of.n ? of.admitted / of.n : null)}</td>
        <td class="n">${of.judged ? share(of.right / of.judged) : "–"}</td>`}
    </tr>`;
}

// A panel for each prediction, those with the most points first.
function panelsOf(points, classes, axis) {
  const by = classes.map(() => []);
  for (let i = 0; i < points.length; i++) if (points.predictions[i] >= 0) by[points.predictions[i]].push(i);
  const height = axis === "score" ? points.score : points.confidence;
  return by
    .map((positions, c) => ({ c, positions }))
    .filter(({ positions }) => positions.length)
    .sort((a, b) => b.positions.length - a.positions.length)
    .slice(0, MOST_PANELS)
    .sort((a, b) => a.c - b.c)
    .map(({ c, positions }) => ({
      c, positions,
      points: {
        x: Float32Array.from(positions, (i) => scales.similarity(points.similarity[i])),
        y: Float32Array.from(positions, (i) => scales.share(height[i])),
        kind: Uint8Array.from(positions, (i) => (points.labels[i] < 0 ? 2 : points.labels[i] === c ? 0 : 1)),
      },
    }));
}

function filtered(points, wanted) {
  const found = [];
  for (let i = 0; i < points.length; i++) if (wanted(i)) found.push(i);
  return found;
}

async function examples(points, set, positions) {
  const names = positions.map((i) => points.name(i)).join(",");
  return (await ask(`v1/map/examples?of=${set}&positions=${names}`)).examples;
}

const open = async (points, set, i) => (await examples(points, set, [i]))[0].text;

function Listed({ title, positions, set, points, classes }) {
  const [rows, setRows] = useState([]);
  const shown = positions.slice(0, MOST_LISTED);
  useEffect(() => {
    let stale = false;
    setRows([]);
    if (shown.length) examples(points, set, shown).then((found) => stale || setRows(found)).catch(() => stale || setRows([]));
    return () => (stale = true);
  }, [positions, set]);
  return html`
    <h3>${title}: ${plural(positions.length, "point")}${positions.length > MOST_LISTED ? `, the first ${MOST_LISTED}` : ""}</h3>
    ${shown.length > 0 && html`<div class="scroll tall" tabindex="0" role="region" aria-label=${title}><table>
      <thead><tr><th scope="col">input</th><th scope="col">predicted</th><th scope="col">label</th><th scope="col" class="n">q′</th><th scope="col" class="n">confidence</th></tr></thead>
      <tbody>${shown.map((i, n) => html`
        <tr><td class="text">${rows[n]?.text ? html`<a href=${address("try", { text: rows[n].text })}>${rows[n].text}</a>` : rows[n] ? `id ${rows[n].id}` : "…"}</td>
          <td>${String(classes[points.predictions[i]])}</td><td>${points.labels[i] < 0 ? "–" : String(classes[points.labels[i]])}${points.labels[i] >= 0 && points.labels[i] !== points.predictions[i] ? " ✕" : ""}</td>
          <td class="n">${number(points.similarity[i])}</td><td class="n">${number(points.confidence[i], 4)}</td></tr>`)}</tbody>
    </table></div>`}`;
}
