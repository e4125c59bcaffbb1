// Try: one input, its decision, and why.
import { ask } from "./api.js";
import { Gauge } from "./gauges.js";
import { address, go } from "./route.js";
import { LANES, Lane, Notice, classOf, count, html, number, plural, sentence, share, useEffect, useRef, useState } from "./ui.js";

const FEW = 5, MANY = 25;

export function Try({ model, params }) {
  const [text, setText] = useState(params.text ?? "");
  const [answer, setAnswer] = useState(params.answer ?? "");
  const [row, setRow] = useState(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const k = params.k === "more" ? MANY : FEW;

  useEffect(() => {
    setText(params.text ?? "");
    setAnswer(params.answer ?? "");
    setProblem("");
    if (!params.text) return setRow(null);
    let stale = false;
    setBusy(true);
    ask("v1/explain", { ...inputs(model, params), k })
      .then(({ explanations, version }) => stale || setRow({ ...explanations[0], version }))
      .catch((error) => stale || (setProblem(error.message), setRow(null)))
      .finally(() => stale || setBusy(false));
    return () => (stale = true);
  }, [params.text, params.answer, k, model.version]);

  const submit = (event) => {
    event.preventDefault();
    go("try", { text: text.trim(), answer: answer.trim() });
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  return html`
    <h1>Try an input</h1>
    <form class="card ask" onSubmit=${submit} onKeyDown=${keys}>
      <label for="text">${model.reads_texts ? "Text" : `Hidden state: ${model.n_features} numbers, as a JSON list`}</label>
      <textarea id="text" rows="3" value=${text} onInput=${(e) => setText(e.target.value)} required></textarea>
      ${model.signals.asks_for_answers && html`
        <label for="answer">Answer to judge</label>
        <textarea id="answer" rows="2" value=${answer} onInput=${(e) => setAnswer(e.target.value)} required></textarea>`}
      <div class="row">
        <button class="main" disabled=${busy}>${busy ? "Deciding…" : "Decide"}</button>
        <span class="hint wide-only">or <kbd>Ctrl</kbd> <kbd>Enter</kbd>. The drift guard does not watch what you try.</span>
      </div>
    </form>
    <div aria-live="polite" aria-busy=${busy}>
      ${problem && html`<${Notice}>${problem}</${Notice}>`}
      ${row && html`<${Decision} row=${row} model=${model} params=${params} />`}
    </div>
    ${!row && !problem && !busy && html`<${Start} model=${model} />`}`;
}

function inputs(model, { text, answer }) {
  if (!model.reads_texts) return { hidden_states: [JSON.parse(text)] };
  return model.signals.asks_for_answers ? { texts: [text], answers: [answer ?? ""] } : { texts: [text] };
}

function Start({ model }) {
  return html`
    <section class="card" aria-labelledby="start">
      <h2 id="start">What you will see</h2>
      <p>The model answers with one of ${plural(model.classes.length, "label")}, and says which of its
        <strong>${count(model.n_support)}</strong> training examples vouch for it, how near they are, and how
        <strong>${count(model.n_calibration)}</strong> calibration points like it fared.</p>
      <dl class="lanes">${Object.entries(LANES).slice(0, 4).map(([lane, { advice }]) => html`
        <div><dt><${Lane} lane=${lane} /></dt><dd>${advice}</dd></div>`)}</dl>
    </section>`;
}

function Decision({ row, model, params }) {
  if (row.lane === "rejected") {
    return html`<section class="card verdict rejected"><p class="said"><${Lane} lane="rejected" /></p><p>${sentence(row.reason)}</p></section>`;
  }
  return html`
    <section class="card verdict ${row.lane}" aria-labelledby="verdict">
      <div class="row spread">
        <h2 id="verdict" class="said">${String(row.prediction)}</h2>
        <${Lane} lane=${row.lane} />
      </div>
      <p class="reason">${sentence(row.reason)}</p>
      <p class="advice">${LANES[row.lane].advice}</p>
      <div class="row spread foot"><span class="hint">decided by version ${row.version}</span><${CopyLink} params=${params} /></div>
    </section>
    <div class="columns">
      <${Signals} row=${row} model=${model} />
      <div>
        <${Exemplars} row=${row} model=${model} params=${params} />
        <${Partition} row=${row} model=${model} />
      </div>
    </div>`;
}

function CopyLink({ params }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    const link = location.origin + location.pathname + address("try", params);
    try {
      await navigator.clipboard.writeText(link);
      setSaid("Copied.");
    } catch {
      setSaid("Copy it from the address bar.");
    }
  };
  return html`<span><button type="button" class="quiet" onClick=${copy}>Copy link</button> <span role="status" class="hint">${said}</span></span>`;
}

function Signals({ row, model }) {
  const { edges, predictions, region, certificate, classes } = model.signals;
  const c = classOf(classes, row.prediction);
  const drawn = (name) => ({ edges: edges[name], ...predictions[c][name], value: row[name] });
  return html`
    <section class="card" aria-labelledby="signals">
      <h2 id="signals">The signals</h2>
      <p class="hint">Each against the calibration points that were also predicted “${String(row.prediction)}”:${" "}
        <span class="key right">right ones above</span>, <span class="key wrong">wrong ones below the line</span>.</p>
      <${Gauge} name="Similarity q" what="How many of the nearest training examples vouch for it before the first that does not." ...${drawn("similarity")} />
      <${Gauge} name="Distance d" what="1 is as near to the training data as the nearest calibration points, 0 is farther than all."
        lower=${row.distance_quantile_lower} upper=${row.distance_quantile_upper} ...${drawn("distance_quantile")} />
      <${Gauge} name="Magnitude" what="The adaptor's output for this label." ...${drawn("magnitude")} />
      <h3>What they come to</h3>
      <${Gauge} name="Confidence" what="All three signals together." lower=${row.confidence_lower} upper=${row.confidence_upper}
        threshold=${region.found ? { value: region.thresholds[c], text: "The region begins at" } : null} ...${drawn("confidence")} />
      ${edges.score && row.score != null && html`
        <${Gauge} name="Reliability" what="Estimated probability of being right."
          threshold=${{ value: certificate?.thresholds[c], text: "Certified from" }} ...${drawn("score")} />`}
    </section>`;
}

function Exemplars({ row, model, params }) {
  const ends = row.exemplars.findIndex((one) => !one.vouches);
  const farthest = Math.max(...row.exemplars.map((one) => one.distance), 1e-9);
  return html`
    <section class="card" aria-labelledby="exemplars">
      <h2 id="exemplars">Nearest training examples</h2>
      <ol class="exemplars">
        ${row.exemplars.map((one, i) => html`
          ${i === ends && html`<${End} q=${row.similarity} />`}
          <${Exemplar} one=${one} far=${farthest} />`)}
      </ol>
      ${ends < 0 && html`<p class="ends">All of these vouch for it${row.similarity > row.exemplars.length
        ? `, and ${count(row.similarity - row.exemplars.length)} more after them` : ""} (q = ${count(row.similarity)}).</p>`}
      ${params.k !== "more" && html`<a href=${address("try", { ...params, k: "more" })}>Show ${MANY}</a>`}
      ${!model.shows_texts && html`<p class="hint">This service was started without <code>--texts</code>, so examples are shown by their ids.</p>`}
    </section>`;
}

const End = ({ q }) => html`
  <li class="ends"><span>${q ? `The run of agreement ends here (q = ${count(q)})` : "No agreement at all (q = 0): the nearest does not vouch"}</span></li>`;

function Exemplar({ one, far }) {
  const wrong = String(one.label) !== String(one.prediction);
  return html`
    <li class=${one.vouches ? "vouches" : "against"}>
      <details>
        <summary>
          <span class="sign" aria-hidden="true">${one.vouches ? "✓" : "✕"}</span>
          <span class="text">${one.text ?? `id ${one.id}`}</span>
        </summary>
        <dl class="facts">
          <div><dt>id</dt><dd>${String(one.id)}</dd></div>
          ${one.text && html`<div class="whole"><dt>text</dt><dd>${one.text}</dd></div>`}
        </dl>
        ${one.text && html`<a href=${address("try", { text: one.text })}>Inspect this example</a>`}
      </details>
      <p class="meta">
        <span><span class="unseen">${one.vouches ? "vouches:" : "does not vouch:"}</span> label <b>${String(one.label)}</b></span>
        ${wrong && html`<span>predicted <b>${String(one.prediction)}</b></span>`}
        <span class="distance">distance ${number(one.distance)}${" "}<svg viewBox="0 0 60 6" width="60" height="6" aria-hidden="true"><rect width="60" height="6" rx="3" class="track" /><rect width=${Math.max(3, (60 * one.distance) / far)} height="6" rx="3" class="fill" /></svg></span>
      </p>
    </li>`;
}

function Partition({ row }) {
  const points = row.calibration_points;
  return html`
    <section class="card" aria-labelledby="partition">
      <h2 id="partition">Calibration points like it</h2>
      ${row.partition_size === 0
        ? html`<p>No calibration point with this prediction has a similar q′ and distance.</p>`
        : html`
          <p><strong>${share(row.partition_accuracy)}</strong> of ${plural(row.partition_size, "calibration point")} with this
            prediction and a similar q′ and distance are right${row.partition_size < 20 ? ": few to judge by" : ""}.</p>
          <div class="scroll" tabindex="0" role="region" aria-label="Calibration points"><table>
            <thead><tr><th scope="col">label</th><th scope="col">right</th><th scope="col" class="n">q′</th><th scope="col" class="n">d</th><th scope="col">text</th></tr></thead>
            <tbody>${points.map((one) => html`
              <tr><td>${String(one.label)}</td><td>${String(one.label) === String(one.prediction) ? "✓ yes" : "✕ no"}</td>
                <td class="n">${number(one.rescaled_similarity)}</td><td class="n">${number(one.distance_quantile)}</td>
                <td class="text">${one.text ? html`<a href=${address("try", { text: one.text })}>${one.text}</a>` : `id ${one.id}`}</td></tr>`)}</tbody>
          </table></div>`}
    </section>`;
}
