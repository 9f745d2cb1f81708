// The studio: a session that is clicked together, and what the policy makes of it. Nothing here is recorded.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (tag, options = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), options);
  node.append(...children);
  return node;
};
const draw = (tag, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

const sessionId = "studio-" + Math.random().toString(36).slice(2);
const names = new Map(); // item -> {name, picture}
let steps = []; // what each answer added: lists of {item, response}
let slate = [];
let positive = ["click"];
let skipWord = "skip";
let asked = 0; // the newest question; older answers are not shown

async function call(path, body) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem("key");
  if (key) headers["x-api-key"] = key;
  const answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  const value = await answer.json();
  const refused = answer.status === 401 || answer.status === 403;
  if (refused && key === sessionStorage.getItem("key")) $("keyform").hidden = false; // and not for an older key
  if (!answer.ok) throw new Error(value.error || "The server does not answer.");
  $("problem").hidden = true;
  return value;
}

function tell(error) {
  $("problem").textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
  $("problem").hidden = false;
}

const nameOf = (item) => names.get(String(item))?.name ?? String(item);

function face(item) {
  const picture = names.get(String(item))?.picture;
  if (picture) return make("img", { className: "face", src: picture, alt: "", loading: "lazy" });
  return make("span", { className: "face", ariaHidden: "true" }, nameOf(item).slice(0, 3));
}

// ---- the session

function events() {
  return steps.flat();
}

function showSession() {
  const chips = events().map(({ item, response }) => {
    const chip = make("li", {}, response === skipWord ? nameOf(item) : `${nameOf(item)} · ${response}`);
    if (response === skipWord) {
      chip.className = "skip";
      chip.setAttribute("aria-label", `${nameOf(item)}, skipped`);
    }
    return chip;
  });
  $("session").replaceChildren(...chips);
  $("empty").hidden = chips.length > 0;
  $("undo").disabled = $("restart").disabled = chips.length === 0;
}

function add(step) {
  steps.push(step);
  slate = []; // what is on the screen was for the session before; a quick second key does nothing
  refresh();
}

function answer(place, response) {
  if (!slate[place]) return;
  add(slate.map(({ item }, index) => ({ item, response: index === place ? response : skipWord }))
    .filter((one, index) => index <= place || one.response !== skipWord));
}

const skipAll = () => slate.length && add(slate.map(({ item }) => ({ item, response: skipWord })));
const undo = () => { steps.pop(); refresh(); };
const restart = () => { steps = []; refresh(); };

// ---- recommendations

async function refresh() {
  showSession();
  const mine = ++asked;
  try {
    const k = Number($("k").value);
    const body = { session: events().slice(-1000), session_id: sessionId, k, explain: true, explore: false, record: false };
    const found = await call("v1/recommend", body);
    await learnAbout([...found.items.map((one) => one.item), ...Object.values(found.beside ?? {}).flat()]);
    if (mine !== asked) return;
    slate = found.items;
    showSlate();
    showBeside(found.beside ?? {});
  } catch (error) {
    tell(error);
  }
}

function showSlate() {
  const all = slate.flatMap((one) => (one.quantiles ? Object.values(one.quantiles) : []));
  const [low, high] = [Math.min(...all), Math.max(...all)];
  $("slate").replaceChildren(...slate.map((one, place) => {
    const answers = positive.map((response, index) => {
      const button = make("button", { type: "button", className: index ? "" : "main" }, response);
      button.setAttribute("aria-label", `${response} ${nameOf(one.item)}`);
      button.addEventListener("click", () => answer(place, response));
      return button;
    });
    const row = make("li", {}, face(one.item), make("span", { className: "name" }, nameOf(one.item)),
      make("span", { className: "answers" }, ...answers));
    if (one.quantiles) row.append(plot(one, low, high));
    row.append(make("span", { className: "facts" }, facts(one)));
    return row;
  }));
  if (!slate.length) $("slate").append(make("li", {}, "", make("span", {}, "Nothing is left to recommend.")));
  $("legend").hidden = !all.length;
}

function facts(one) {
  const parts = [`value ${one.value.toFixed(2)}`];
  if (one.likelihood != null) parts.push(`likelihood under the behaviour policy ${(100 * one.likelihood).toPrecision(2)} %`);
  return parts.join(" · ");
}

function plot(one, low, high) {
  const q = one.quantiles;
  const at = (value) => 2 + 296 * (high > low ? (value - low) / (high - low) : 0.5);
  const words = ["0.1", "0.5", "0.9"].map((name) => q[name].toFixed(2));
  const svg = draw("svg", { class: "plot", viewBox: "0 0 300 20", preserveAspectRatio: "none", role: "img",
    "aria-label": `return: 10 % below ${words[0]}, median ${words[1]}, 10 % above ${words[2]}` });
  const width = Math.max(at(q["0.7"]) - at(q["0.3"]), 1);
  svg.append(
    draw("line", { class: "whisker", x1: at(q["0.1"]), x2: at(q["0.9"]), y1: 10, y2: 10 }),
    draw("rect", { class: "box", x: at(q["0.3"]), width, y: 3, height: 14 }),
    draw("line", { class: "median", x1: at(q["0.5"]), x2: at(q["0.5"]), y1: 1, y2: 19 }));
  return svg;
}

function showBeside(beside) {
  const words = { behaviour: "The behaviour policy", popular: "MostPop" };
  const mine = new Set(slate.map((one) => String(one.item)));
  const lists = Object.entries(words).filter(([name]) => beside[name]?.length).flatMap(([name, title]) => [
    make("dt", {}, title),
    make("dd", {}, ...beside[name].map((item) =>
      make("span", { className: mine.has(String(item)) ? "same" : "" }, nameOf(item)))),
  ]);
  $("beside").replaceChildren(...lists);
  $("beside-box").hidden = !lists.length;
}

// ---- the catalogue

function learn(items) {
  for (const one of items) names.set(String(one.item), one);
}

async function learnAbout(items) {
  const missing = [...new Set(items.filter((item) => item != null && !names.has(String(item))))];
  if (missing.length) learn((await call(`v1/items?${missing.map((item) => `ids=${encodeURIComponent(item)}`).join("&")}`)).items);
}

async function search() {
  const text = $("search").value;
  try {
    const found = await call(`v1/items?limit=60&q=${encodeURIComponent(text)}`);
    if (text !== $("search").value) return;
    learn(found.items);
    $("catalogue").replaceChildren(...found.items.map(({ item }) => {
      const button = make("button", { type: "button" }, face(item), make("span", {}, nameOf(item)));
      button.addEventListener("click", () => add([{ item, response: positive[0] }]));
      return make("li", {}, button);
    }));
    $("found").textContent = `${found.total.toLocaleString()} items`;
  } catch (error) {
    tell(error);
  }
}

// ---- what goes on

async function watch() {
  try {
    const health = await call("v1/health");
    $("health").textContent = health.status === "ok" ? "● running" : "● running, but the database is away";
    $("health").className = `health ${health.status}`;
    const experiments = await call("v1/experiments");
    showRates(experiments.arms);
    showCanary(experiments.canary);
  } catch (error) {
    $("health").textContent = "● not reached";
    $("health").className = "health degraded";
  }
}

function showRates(arms) {
  const responses = [...new Set(arms.flatMap((arm) => Object.keys(arm.rates)))];
  const cells = (tag, texts) => make("tr", {}, ...texts.map((text) => make(tag, {}, text)));
  const percent = (value) => (100 * value).toFixed(1);
  $("rates").tHead.replaceChildren(cells("th", ["policy version", "arm", "sessions", "shown", ...responses.map((name) => `${name} %`)]));
  $("rates").tBodies[0].replaceChildren(...arms.map((arm) => cells("td", [
    arm.policy + (arm.serving ? " (now)" : ""), arm.arm, arm.sessions.toLocaleString(), arm.impressions.toLocaleString(),
    ...responses.map((name) => {
      const rate = arm.rates[name];
      return rate ? `${percent(rate.value)} [${percent(rate.low)}, ${percent(rate.high)}]` : "–";
    }),
  ])));
  if (!arms.length) $("rates").tBodies[0].replaceChildren(cells("td", ["no traffic yet"]));
}

function showCanary(canary) {
  $("canary-box").hidden = !canary;
  if (!canary) return;
  const tells = canary.decision && !canary.acts ? " It is only told: sessions go on as before." : "";
  $("canary-sentence").textContent = canary.sentence + tells;
  $("canary-plot").replaceChildren(sequencePlot(canary));
  const means = Object.entries(canary.means).map(([arm, mean]) =>
    `${arm}: ${canary.sessions[arm].toLocaleString()} sessions${mean === null ? "" : `, mean ${mean.toPrecision(3)}`}`);
  $("canary-facts").textContent = `${means.join(" · ")} · ${(100 * canary.share).toFixed(0)} % of new sessions go to ` +
    `the new policy · the band holds new − old with an error rate of ${100 * canary.error} % a side, whenever one looks`;
}

// The confidence sequence: the band of what new − old may be, over the sessions that were counted.
function sequencePlot(canary) {
  const [width, height, left, bottom] = [600, 180, 46, 22];
  const span = canary.reward.highest - canary.reward.lowest;
  const points = [{ sessions: 0, low: -span, high: span, difference: null }, ...canary.history];
  const settled = points.slice(-Math.max(1, Math.ceil(points.length / 2))); // the first ones know nothing
  const reach = 1.15 * Math.max(Math.abs(canary.margin), ...settled.flatMap((one) => [Math.abs(one.low), Math.abs(one.high)]));
  const most = Math.max(points[points.length - 1].sessions, 1);
  const x = (sessions) => left + (width - left - 4) * sessions / most;
  const y = (value) => (height - bottom) / 2 * (1 - Math.max(-1, Math.min(1, value / reach))) + 2;
  const path = (list) => list.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
  const edge = (name) => points.map((one) => [x(one.sessions), y(one[name])]);
  const svg = draw("svg", { class: "sequence", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `new − old lies between ${canary.low.toPrecision(3)} and ${canary.high.toPrecision(3)}` });
  const text = (value, attributes) => {
    const node = draw("text", attributes);
    node.textContent = value;
    return node;
  };
  svg.append(
    draw("polygon", { class: "box", points: path([...edge("low"), ...edge("high").reverse()]) }),
    draw("line", { class: "whisker", x1: left, x2: width - 4, y1: y(canary.margin), y2: y(canary.margin) }),
    draw("polyline", { class: "median", fill: "none",
      points: path(points.filter((one) => one.difference !== null).map((one) => [x(one.sessions), y(one.difference)])) }),
    text(`+${reach.toPrecision(2)}`, { x: left - 6, y: 12, "text-anchor": "end" }),
    text(canary.margin ? canary.margin.toPrecision(2) : "0", { x: left - 6, y: y(canary.margin) + 4, "text-anchor": "end" }),
    text(`−${reach.toPrecision(2)}`, { x: left - 6, y: height - bottom, "text-anchor": "end" }),
    text("0", { x: left, y: height - 4 }),
    text(`${most.toLocaleString()} sessions`, { x: width - 4, y: height - 4, "text-anchor": "end" }));
  return svg;
}

async function begin() {
  try {
    const { policies } = await call("v1/policy");
    const first = policies[0];
    positive = first.positive;
    skipWord = Object.keys(first.responses).find((name) => !positive.includes(name)) ?? "skip";
    $("policy").textContent = policies
      .map((one) => `${one.method} ${one.version} · ${one.items.toLocaleString()} items`).join("  |  ");
    await search();
    await refresh();
  } catch (error) {
    tell(error);
  }
  watch();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (/^[1-9]$/.test(event.key)) answer(Number(event.key) - 1, positive[0]);
  else if (event.key === "s") skipAll();
  else if (event.key === "u" && steps.length) undo();
  else if (event.key === "r" && steps.length) restart();
  else if (event.key === "/") $("search").focus();
  else return;
  event.preventDefault();
});
let pause;
$("search").addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(search, 150); });
$("undo").addEventListener("click", undo);
$("restart").addEventListener("click", restart);
$("skip").addEventListener("click", skipAll);
$("k").addEventListener("change", refresh);
$("keyform").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  $("keyform").hidden = true;
  begin();
});
setInterval(() => document.hidden || watch(), 5000);
begin();
