// The shell: which model, which view, and who asks.
import { ask, recall, remember } from "./api.js";
import { readRoute } from "./route.js";
import { Health } from "./health.js";
import { CalibrationMap } from "./map.js";
import { Review } from "./review.js";
import { Try } from "./try.js";
import { Empty, Notice, html, render, useEffect, useRef, useState } from "./ui.js";

const VIEWS = {
  try: { name: "Try", view: Try },
  map: { name: "Map", view: CalibrationMap },
  review: { name: "Review", view: Review },
  health: { name: "Health", view: Health },
};

function App() {
  const [route, setRoute] = useState(readRoute);
  const [model, setModel] = useState(null);
  const [problem, setProblem] = useState("");
  const main = useRef(null);
  const { view, params } = route;
  const shown = VIEWS[view] ?? VIEWS.try;

  const load = async () => {
    try {
      const [facts, signals] = await Promise.all([ask("v1/model"), ask("v1/signals")]);
      setModel({ ...facts, signals });
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  useEffect(() => {
    const follow = () => {
      setRoute((before) => {
        const next = readRoute();
        if (next.view !== before.view) main.current?.focus();
        return next;
      });
    };
    addEventListener("hashchange", follow);
    load();
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    document.title = `${shown.name} · ${model?.name ?? "torchsdm"}`;
  }, [shown, model]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <header>
      <div class="bar">
        <a class="brand" href="#try"><img src="page/icon.svg" alt="" width="28" height="28" /> <strong>${model?.name ?? "torchsdm"}</strong>
          ${model && html` <span class="version">version ${model.version}</span>`}</a>
        <nav aria-label="Views">
          ${Object.entries(VIEWS).map(([key, { name }]) => html`
            <a href="#${key}" aria-current=${VIEWS[key] === shown ? "page" : undefined}>${name}</a>`)}
        </nav>
      </div>
    </header>
    <main id="main" ref=${main} tabindex="-1" aria-label=${shown.name}>
      <${Token} onChange=${load} />
      ${problem && html`<${Notice}>${problem} <button type="button" class="quiet" onClick=${load}>Try again</button></${Notice}>`}
      ${model ? html`<${shown.view} model=${model} params=${params} reload=${load} />` : !problem && html`<${Empty}>Asking the service…</${Empty}>`}
    </main>`;
}

// Asked for only when the service wants one.
function Token({ onChange }) {
  const [needed, setNeeded] = useState(false);
  useEffect(() => {
    const need = () => setNeeded(true);
    addEventListener("token-needed", need);
    return () => removeEventListener("token-needed", need);
  }, []);
  if (!needed) return null;
  const submit = (event) => {
    event.preventDefault();
    remember("token", new FormData(event.target).get("token").trim());
    setNeeded(false);
    onChange();
  };
  return html`
    <form class="card row" onSubmit=${submit}>
      <label for="token">This needs the service's token.</label>
      <input id="token" name="token" type="password" autocomplete="current-password" value=${recall("token")} required />
      <button>Use it</button>
    </form>`;
}

const app = document.getElementById("app");
app.replaceChildren();
render(html`<${App} />`, app);
