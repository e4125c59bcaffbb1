// Requests to the service. Every failure is an Error with one sentence for people.

const kept = { token: sessionStorage, who: localStorage };
export const recall = (name) => kept[name].getItem(`sdm-${name}`) ?? "";
export const remember = (name, value) => kept[name].setItem(`sdm-${name}`, value);

export async function ask(path, body, method = body === undefined ? "GET" : "POST") {
  const response = await send(path, body, method);
  return response.json();
}

// Save an answer as a file. A link would not carry the token.
export async function download(path, name) {
  const response = await send(path, undefined, "GET");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function send(path, body, method) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (recall("token")) headers.authorization = `Bearer ${recall("token")}`;
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Error("The service does not answer. Is it still running?");
  }
  if (response.status === 401) window.dispatchEvent(new CustomEvent("token-needed"));
  if (!response.ok) throw new Error(await failure(response));
  return response;
}

async function failure(response) {
  try {
    const { error, detail } = await response.json();
    return error ?? (typeof detail === "string" ? detail : `The service answered with status ${response.status}.`);
  } catch {
    return `The service answered with status ${response.status}.`;
  }
}
