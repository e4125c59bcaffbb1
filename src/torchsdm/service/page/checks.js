// Spot checks: how they stand, and the answers that wait for somebody to say whether they are right.
import { recall } from "./api.js";
import { count, html, number, plural, share } from "./ui.js";

export const WAITING = 5; // answers to show at once

const who = () => recall("who") || "reviewer";

export function Checks({ checks, drawing, waiting, attempt }) {
  if (!checks) return html`<section class="card"><h2>Spot checks</h2><p>Nothing is certified, so there is nothing to check.</p></section>`;
  const reset = (event) => {
    event.preventDefault();
    attempt("v1/checks/reset", { reason: new FormData(event.target).get("reason"), who: who() });
  };
  return html`
    <section class="card" aria-labelledby="checks">
      <div class="row spread"><h2 id="checks">Spot checks</h2>
        <span class="lane ${checks.raised ? "rejected" : "trusted"}"><span aria-hidden="true">${checks.raised ? "!" : "✓"}</span> ${checks.raised ? "raised" : "calm"}</span></div>
      <p>${plural(checks.n_checked, "answer")} checked, ${count(checks.n_wrong)} wrong.
        ${checks.raised && ` Raised by ${checks.raised_by.join(", ")}: what it is about goes to review until the checks are reset.`}
        ${!drawing && " This service draws no answers; --check-rate switches that on."}</p>
      ${checks.n_checked > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="What was checked"><table>
        <thead><tr><th scope="col">about</th><th scope="col" class="n">checked</th><th scope="col" class="n">wrong</th><th scope="col" class="n">right</th><th scope="col">between</th><th scope="col" class="n">evidence</th><th scope="col" class="n">alarm at</th></tr></thead>
        <tbody>${checks.groups.map((one) => html`<tr><th scope="row">${one.name}${one.raised ? " (raised)" : ""}</th><td class="n">${count(one.n_checked)}</td><td class="n">${count(one.n_wrong)}</td>
          <td class="n">${share(one.accuracy)}</td><td>${share(one.lower_bound)} – ${share(one.upper_bound)}</td><td class="n">${number(one.log_evidence)}</td><td class="n">${number(one.log_threshold)}</td></tr>`)}</tbody></table></div>
        <p class="hint">Bounds hold at all times with probability ${number(checks.confidence)}. Evidence is a logarithm; while the promise holds, any alarm is ever raised with probability at most ${number(checks.false_alarm)}.</p>`}
      ${waiting.length > 0 && html`<h3>${plural(checks.n_waiting, "answer")} to check</h3>
        <ul>${waiting.map((one) => html`<${Answer} key=${one.check} one=${one} attempt=${attempt} />`)}</ul>`}
      ${checks.raised && html`<form onSubmit=${reset}><label for="check-reason">Why reset them?</label>
        <div class="row"><input id="check-reason" name="reason" required /><button>Reset the spot checks</button></div></form>`}
    </section>`;
}

function Answer({ one, attempt }) {
  const say = (right) => () => attempt("v1/checks", { verdicts: [{ check: one.check, right }], who: who() });
  return html`<li>
    <p>${one.text ?? one.id} <strong>${String(one.prediction)}</strong></p>
    <div class="row">
      <button type="button" onClick=${say(true)} aria-label="Right: answer ${one.check}, ${String(one.prediction)}">Right</button>
      <button type="button" onClick=${say(false)} aria-label="Wrong: answer ${one.check}, ${String(one.prediction)}">Wrong</button>
    </div></li>`;
}
