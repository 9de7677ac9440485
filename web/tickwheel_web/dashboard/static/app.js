// What pages do beyond links and forms: local times, live figures, tables that are loaded anew, keys.
"use strict";

const stored = {
  get(name) { try { return localStorage.getItem("tw-" + name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem("tw-" + name, value); } catch { /* Nothing may be stored here. */ } },
};
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);

// -- times -------------------------------------------------------------------------------------------------------

const UNITS = [["year", 31557600], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
let isUtc = stored.get("zone") === "utc";

function zoneName() {
  return isUtc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
}

function formats() {
  const zone = isUtc ? { timeZone: "UTC" } : {};
  // Swedish writes a date as ISO 8601 does.
  return {
    full: new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium", ...zone }),
    day: new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", ...zone }),
  };
}

function relativeText(at) {
  const seconds = (at - Date.now()) / 1000;
  const found = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  const [unit, length] = UNITS.find(([, length]) => Math.abs(seconds) >= length) || UNITS.at(-1);
  return found.format(Math.round(seconds / length), unit);
}

function showTimes(within = document) {
  const { full, day } = formats();
  for (const time of all("time[data-form]", within)) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    if (time.dataset.form === "relative") {
      time.textContent = relativeText(at);
      time.title = `${full.format(at)} ${zoneName()}, ${at.toISOString()}`;
    } else {
      time.textContent = (time.dataset.form === "day" ? day : full).format(at);
      time.title = at.toISOString();
    }
  }
  for (const name of all("[data-zone-name]")) name.textContent = zoneName();
}

function switchZone() {
  isUtc = !isUtc;
  stored.set("zone", isUtc ? "utc" : "local");
  showZone();
  showTimes();
  document.dispatchEvent(new CustomEvent("tw:zone"));
}

function showZone() {
  const button = one("[data-zone-switch]");
  if (button) button.querySelector("span").textContent = isUtc ? "Local times" : "UTC";
}

// -- dark and light ----------------------------------------------------------------------------------------------

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  stored.set("theme", root.dataset.theme);
  document.dispatchEvent(new CustomEvent("tw:theme"));
}

// -- live figures, and parts that are loaded anew ----------------------------------------------------------------

const REFRESH_MS = 5000;
let isPaused = stored.get("live") === "paused";
let stream = null;

function isStill() {
  return isPaused || document.hidden || one("main input[type=checkbox]:checked, dialog[open]") !== null;
}

function openStream() {
  const wanted = !isPaused && !document.hidden && document.body.dataset.events && one("[data-live]");
  if (!wanted) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    stream = new EventSource(document.body.dataset.events);
    stream.onmessage = (event) => showFigures(JSON.parse(event.data));
    stream.onopen = () => showState("");
    stream.onerror = () => {
      showState("no connection");
      if (stream?.readyState === EventSource.CLOSED) stream = null; // it was refused: asked for again below
    };
  }
}

function showFigures(figures) {
  for (const element of all("[data-live]")) {
    const text = figures[element.dataset.live];
    if (text !== undefined && element.textContent !== text) element.textContent = text;
  }
}

function showState(text) {
  const state = one("[data-live-state]");
  if (!state) return;
  state.textContent = isPaused ? "paused" : text;
  state.hidden = !state.textContent;
}

function switchLive() {
  isPaused = !isPaused;
  stored.set("live", isPaused ? "paused" : "on");
  showLive();
  openStream();
}

function showLive() {
  const button = one("[data-live-switch]");
  if (button) {
    button.setAttribute("aria-pressed", String(isPaused));
    button.querySelector("span").textContent = isPaused ? "Go on" : "Pause";
  }
  showState("");
}

// The stream or a part of the page could not be had; what is shown is from before.
document.addEventListener("tw:stale", () => showState("stale"));
document.addEventListener("htmx:after:swap", () => {
  showState("");
  showTimes(); // a text that was put in the place of another is no new node
});

function refresh() {
  openStream();
  if (!isStill()) document.body.dispatchEvent(new CustomEvent("tw:refresh"));
  showTimes();
}

// -- keys --------------------------------------------------------------------------------------------------------

const hasKeys = () => stored.get("keys") !== "off";
let isAfterG = false;

function isTyping(target) {
  return target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
}

function moveRow(step) {
  const rows = all("main tbody tr:has(a, input)");
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, now < 0 ? 0 : now + step))];
  next.querySelector("a, input").focus();
  next.scrollIntoView({ block: "nearest" });
}

function selectRow() {
  const box = document.activeElement.closest("tr")?.querySelector("input[type=checkbox]");
  if (box) box.click();
}

// Otherwise a box would send its form.
function openRow(event) {
  if (!event.target.matches("tbody input[type=checkbox]")) return;
  event.preventDefault();
  event.target.closest("tr").querySelector("a")?.click();
}

const KEYS = {
  "/": () => one("[type=search]")?.focus(),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  x: selectRow,
  t: switchTheme,
  ".": switchLive,
  "?": () => one("#help")?.showModal(),
};

function pressed(event) {
  if (!hasKeys() || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (one("dialog[open]")) return;
  const follows = isAfterG;
  isAfterG = event.key === "g";
  if (follows) {
    const link = one(`[data-key="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "Enter") {
    openRow(event);
    return;
  }
  const button = one(`main [data-press="${CSS.escape(event.key)}"]`);
  const action = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : button && (() => button.click());
  if (action) {
    event.preventDefault();
    action();
  }
}

// -- a query, while it runs: to send the form without it cancels it ------------------------------------------------

const query = one("[data-query]");
if (query) {
  const show = (isRunning) => {
    query.querySelector("[data-cancel]").hidden = !isRunning;
    query.querySelector("[data-running]").textContent = isRunning ? "It runs…" : "";
  };
  query.addEventListener("submit", (event) => show(event.submitter?.name === "run"));
  addEventListener("pageshow", () => show(false));
}

// -- the page is there -------------------------------------------------------------------------------------------

function shown(selector, action) {
  for (const button of all(selector)) {
    button.hidden = false;
    button.addEventListener("click", action);
  }
}

shown("[data-theme-switch]", switchTheme);
shown("[data-zone-switch]", switchZone);
shown("[data-help-switch]", () => one("#help").showModal());
if (one("[data-live], [hx-trigger]")) shown("[data-live-switch]", switchLive);
for (const box of all("[data-keys-switch]")) {
  box.checked = hasKeys();
  box.addEventListener("change", () => stored.set("keys", box.checked ? "on" : "off"));
}
// A box in the head of a table stands for all of its column.
document.addEventListener("change", (event) => {
  const head = event.target.closest("[data-select-all]");
  if (head) for (const box of all("tbody input[type=checkbox]", head.closest("table"))) box.checked = head.checked;
});
document.addEventListener("keydown", pressed);
document.addEventListener("visibilitychange", openStream);
// What htmx puts in place of something has times of its own.
new MutationObserver((changes) => {
  for (const change of changes)
    for (const node of change.addedNodes) if (node.nodeType === Node.ELEMENT_NODE) showTimes(node.parentNode || document);
}).observe(one("main"), { childList: true, subtree: true });
showZone();
showTimes();
showLive();
openStream();
setInterval(refresh, REFRESH_MS);
one("[data-focus]")?.focus();
