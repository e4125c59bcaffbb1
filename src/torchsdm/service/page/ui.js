// What every view uses: Preact, the names of things, numbers for people, and a few small parts.
import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { useCallback, useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { render };
export const html = htm.bind(h);

// The lanes, the most reliable first: a sign (colour is never alone), and what may be done.
export const LANES = {
  trusted: { sign: "✓✓", advice: "You may act on it." },
  certified: { sign: "✓", advice: "You may act on it while inputs look like those it was certified on." },
  review: { sign: "?", advice: "Have somebody look at it first." },
  unfamiliar: { sign: "○", advice: "Do not rely on it: the training data does not speak for this answer." },
  rejected: { sign: "✕", advice: "It could not be read." },
};

export const share = (value) => (value == null ? "–" : `${(100 * value).toFixed(1)} %`);
export const count = (n) => n.toLocaleString("en");
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const sentence = (text) => text && text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
export const classOf = (classes, label) => classes.findIndex((name) => String(name) === String(label));

export function number(value, digits = 3) {
  if (value == null) return "–";
  return Number.isInteger(value) ? count(value) : Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
}

export function when(iso) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? String(iso) : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export const Lane = ({ lane }) => html`
  <span class="lane ${lane}"><span aria-hidden="true">${LANES[lane]?.sign}</span> ${lane}</span>`;

export const Notice = ({ kind = "bad", children }) => html`
  <p class="notice ${kind}" role=${kind === "bad" ? "alert" : "status"}>${children}</p>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// A label as the keyboard has it: "1 negative".
export const Key = ({ name }) => html`<kbd>${name}</kbd>`;
