// One panel of the map: points on a canvas, drawn once; region and brush are boxes above it, which are cheap to move.
// So a frame costs the same for a hundred points as for fifty thousand.
import { html, useEffect, useRef, useState } from "./ui.js";

const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 34;
const MOST_NINES = 4; // of a share on the axis: 0.9, 0.99, 0.999, 0.9999

// q' spans orders of magnitude, and shares differ in their nines.
export const scales = {
  similarity: (q) => Math.log2(1 + q),
  share: (p) => -Math.log10(Math.max(1 - p, 10 ** -MOST_NINES)) / MOST_NINES,
};
const SHARE_TICKS = [0, 0.5, 0.9, 0.99, 0.999];

/* points: { x, y, kind } typed arrays of scaled coordinates, y in 0..1, and kinds 0 right, 1 wrong, 2 unknown.
   most: the largest x. region: { x, y } where admission begins, scaled; null draws none.
   onBrush(positions), onPick(position): what the user chose. */
export function Plot({ title, points, most, region, yName, onBrush, onPick }) {
  const canvas = useRef(null), above = useRef(null), box = useRef(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [drag, setDrag] = useState(null);
  const dark = useDark();
  const { width, height } = size;
  const px = (x) => LEFT + (x / most) * (width - LEFT - RIGHT);
  const py = (y) => height - BOTTOM - y * (height - TOP - BOTTOM);

  useEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) =>
      setSize({ width: Math.round(contentRect.width), height: Math.round(Math.max(220, Math.min(340, contentRect.width * 0.62))) }));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (!width) return;
    const context = prepared(canvas.current, width, height), colours = palette();
    drawAxes(context, { px, py, width, height, most, yName, colours });
    drawPoints(context, points, px, py, colours);
  }, [points, most, width, height, yName, dark]);

  const at = (event) => {
    const frame = above.current.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  const start = (event) => {
    above.current.setPointerCapture(event.pointerId);
    const { x, y } = at(event);
    setDrag({ x0: x, y0: y, x1: x, y1: y });
  };
  const move = (event) => {
    const { x, y } = at(event);
    if (drag) setDrag({ ...drag, x1: x, y1: y });
  };
  const end = () => {
    if (!drag) return;
    setDrag(null);
    const wide = Math.abs(drag.x1 - drag.x0), high = Math.abs(drag.y1 - drag.y0);
    if (wide < 4 && high < 4) {
      const nearest = nearestPoint(points, drag.x1, drag.y1, px, py);
      if (nearest >= 0) onPick(nearest);
    } else onBrush(within(points, drag, px, py));
  };
  return html`
    <figure class="plot" ref=${box}>
      <figcaption>${title}</figcaption>
      <div class="layers" ref=${above} aria-hidden="true" style=${{ height: `${height}px` }}
        onPointerDown=${start} onPointerMove=${move} onPointerUp=${end} onPointerCancel=${() => setDrag(null)}>
        <canvas ref=${canvas}></canvas>
        ${region && width > 0 && html`<div class="region" style=${placed(Math.min(px(region.x), width - RIGHT), TOP, width - RIGHT, py(region.y))}></div>`}
        ${drag && html`<div class="brush" style=${placed(drag.x0, drag.y0, drag.x1, drag.y1)}></div>`}
      </div>
    </figure>`;
}

function placed(x0, y0, x1, y1) {
  return { left: `${Math.min(x0, x1)}px`, top: `${Math.min(y0, y1)}px`, width: `${Math.abs(x1 - x0)}px`, height: `${Math.abs(y1 - y0)}px` };
}

// An empty canvas of this size; only another size makes a new one, which is slow.
function prepared(canvas, width, height) {
  const ratio = devicePixelRatio || 1, wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d", { willReadFrequently: true }); // pixels at once, not a list of what was drawn
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return context;
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["soft", "line", "right", "wrong", "unknown"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function drawAxes(context, { px, py, width, height, most, yName, colours }) {
  context.strokeStyle = colours.line;
  context.fillStyle = colours.soft;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const p of SHARE_TICKS) {
    const y = Math.round(py(scales.share(p))) + 0.5;
    line(context, LEFT, y, width - RIGHT, y);
    context.fillText(String(p), LEFT - 6, y);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  const q = 2 ** most - 1, step = Math.max(1, Math.ceil(Math.log2(1 + q) / 6));
  for (let e = 0; e <= most; e += step) context.fillText((2 ** e - 1).toLocaleString("en"), px(e), height - BOTTOM + 5);
  context.fillText("rescaled similarity q′", (LEFT + width - RIGHT) / 2, height - 14);
  context.save();
  context.translate(8, (height - BOTTOM + TOP) / 2);
  context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(yName, 0, 0);
  context.restore();
}

// Right ones are squares, wrong ones crosses, unknown ones rings: colour is never alone. Wrong ones come last, on top.
function drawPoints(context, { x, y, kind }, px, py, colours) {
  const big = x.length < 2000 ? 4 : 2;
  context.globalAlpha = x.length > 5000 ? 0.5 : 0.8;
  context.fillStyle = colours.right;
  for (let i = 0; i < x.length; i++) if (kind[i] === 0) context.fillRect(px(x[i]) - big / 2, py(y[i]) - big / 2, big, big);
  context.strokeStyle = colours.unknown;
  context.lineWidth = 1.25;
  context.beginPath();
  for (let i = 0; i < x.length; i++) if (kind[i] === 2) {
    const cx = px(x[i]), cy = py(y[i]);
    context.moveTo(cx + big / 2 + 1, cy);
    context.arc(cx, cy, big / 2 + 1, 0, 2 * Math.PI);
  }
  context.stroke();
  context.globalAlpha = 0.9;
  context.strokeStyle = colours.wrong;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let i = 0; i < x.length; i++) if (kind[i] === 1) {
    const cx = px(x[i]), cy = py(y[i]), r = big / 2 + 1;
    context.moveTo(cx - r, cy - r); context.lineTo(cx + r, cy + r);
    context.moveTo(cx - r, cy + r); context.lineTo(cx + r, cy - r);
  }
  context.stroke();
  context.globalAlpha = 1;
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

function within({ x, y }, { x0, y0, x1, y1 }, px, py) {
  const found = [];
  for (let i = 0; i < x.length; i++) {
    const cx = px(x[i]), cy = py(y[i]);
    if (cx >= Math.min(x0, x1) && cx <= Math.max(x0, x1) && cy >= Math.min(y0, y1) && cy <= Math.max(y0, y1)) found.push(i);
  }
  return found;
}

function nearestPoint({ x, y }, atX, atY, px, py) {
  let best = -1, least = 10 ** 2;
  for (let i = 0; i < x.length; i++) {
    const far = (px(x[i]) - atX) ** 2 + (py(y[i]) - atY) ** 2;
    if (far < least) [best, least] = [i, far];
  }
  return best;
}

function useDark() {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const follow = () => setDark(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return dark;
}
