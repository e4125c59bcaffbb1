// A value against the calibration points of the same prediction: right ones upwards, wrong ones downwards.
import { html, number } from "./ui.js";

const WIDTH = 300, HALF = 26, LOW = 12;

/* name, what: title and explanation. value: where the input is. lower, upper: the band around it.
   threshold: { value, text }, where admission begins. edges, right, wrong: the histogram. */
export function Gauge({ name, what, value, shown, lower, upper, threshold, edges, right, wrong }) {
  const n = edges.length - 1;
  const at = (x) => WIDTH * Math.min(1, Math.max(0, position(x, edges)));
  const most = Math.max(1, ...right, ...wrong);
  const height = (k, room) => (k ? Math.max(1.5, (room * k) / most) : 0);
  const total = [...right, ...wrong].reduce((a, b) => a + b, 0);
  const below = total ? cumulative(value, edges, right, wrong) / total : null;
  const band = lower != null && upper != null && upper > lower;
  const words = [
    `${name}: ${shown ?? number(value)}`,
    lower != null ? `lower bound ${number(lower)}` : "",
    threshold ? `${threshold.text} ${number(threshold.value)}` : "",
    below == null ? "" : `higher than about ${Math.round(100 * below)} % of calibration points with this prediction`,
  ].filter(Boolean).join(", ");
  return html`
    <figure class="gauge">
      <figcaption><span class="name">${name}</span> <output>${shown ?? number(value)}</output></figcaption>
      <svg viewBox="-4 -2 ${WIDTH + 8} ${HALF + LOW + 10}" role="img" aria-label=${words}>
        ${band && html`<rect class="band" x=${at(lower)} y="0" width=${Math.max(2, at(upper) - at(lower))} height=${HALF + LOW} />`}
        ${right.map((k, i) => html`<rect class="right" x=${(WIDTH * i) / n + 0.5} width=${WIDTH / n - 1} y=${HALF - height(k, HALF)} height=${height(k, HALF)} />`)}
        ${wrong.map((k, i) => html`<rect class="wrong" x=${(WIDTH * i) / n + 0.5} width=${WIDTH / n - 1} y=${HALF + 1} height=${height(k, LOW)} />`)}
        <line class="axis" x1="0" x2=${WIDTH} y1=${HALF + 0.5} y2=${HALF + 0.5} />
        ${threshold?.value != null && html`<line class="threshold" x1=${at(threshold.value)} x2=${at(threshold.value)} y1="0" y2=${HALF + LOW} />`}
        <path class="marker" d="M${at(value)} ${HALF + LOW} l-5 8 h10 z M${at(value) - 0.75} 0 h1.5 v${HALF + LOW} h-1.5 z" />
      </svg>
      <p class="hint">${what}${lower != null ? ` Lower bound ${number(lower)}.` : ""}${threshold?.value != null ? ` ${threshold.text} ${number(threshold.value)}.` : ""}</p>
    </figure>`;
}

// Where x is between the first and the last edge, 0 to 1; edges need not be evenly spaced.
function position(x, edges) {
  const n = edges.length - 1;
  if (!(x > edges[0])) return 0;
  if (x >= edges[n]) return 1;
  const i = edges.findIndex((edge) => edge > x) - 1;
  return (i + (x - edges[i]) / (edges[i + 1] - edges[i])) / n;
}

function cumulative(x, edges, right, wrong) {
  const n = edges.length - 1, up = position(x, edges) * n;
  return right.reduce((sum, k, i) => sum + (k + wrong[i]) * Math.min(1, Math.max(0, up - i)), 0);
}
