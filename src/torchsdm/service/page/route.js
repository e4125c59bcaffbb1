// A view and its parameters live in the address: "#try?text=A+fine+film". A link shows what its sender saw.

export function readRoute() {
  const [view, query] = location.hash.slice(1).split("?", 2);
  return { view: view || "try", params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function address(view, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== "" && value != null);
  return `#${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export const go = (view, params) => (location.hash = address(view, params));

// The same view with other parameters, without a step in the browser's history.
export function adjust(view, params) {
  history.replaceState(null, "", address(view, params));
}
