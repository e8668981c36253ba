"use strict";
// Live regions, dialogs for forms, suggestions, theme, keyboard. Every page can be read and every form sent without this file.
const root = document.body.dataset.root, $ = (one, within = document) => within.querySelector(one);
const all = (many, within = document) => [...within.querySelectorAll(many)];
const stored = (name, value) => {
  try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; }
};
// --- Change a live region into its newer version, element by element: focus, selection and open details stay. -------------------
const KEPT = { INPUT: ["value", "checked"], DETAILS: ["open"], DIALOG: ["open"] };
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.id || "") !== (fresh.id || "")) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  const kept = KEPT[old.nodeName] || [];
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes])
    if (!kept.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const named = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
  let at = old.firstChild; // what has an id keeps its identity where rows move: its checkbox and its focus stay
  for (const child of [...fresh.childNodes]) {
    const same = named.get(child.id), next = at?.nextSibling ?? null;
    if (same) { if (same === at) at = next; else old.insertBefore(same, at); morph(same, child); }
    else if (at && !at.id) { morph(at, child); at = next; }
    else old.insertBefore(child, at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}
// --- One event stream for this tab; an event has no data, each live region reads its own page again. ----------------------------
const POLL = Number(document.body.dataset.poll || 0), PAUSE = 1000, WITHOUT_STREAM = POLL || 15000, SLOW = 30000;
let stream = null, due = 0, reading = false, paused = stored("paused") === "1", readAt = Date.now();
const status = (word) => all("[data-live-status]").forEach((one) => { one.textContent = word; one.dataset.state = word; });

async function refresh() {
  const regions = all("[data-live]");
  if (!regions.length || paused || document.hidden || reading || $("dialog[open]")) return;
  reading = true;
  readAt = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { "X-Fragment": "1" }, redirect: "error" });
    if (answer.status === 401) return location.reload();
    if (!answer.ok) return status("offline");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const region of regions) {
      const newer = fresh.getElementById(region.id);
      if (newer) morph(region, document.adoptNode(newer));
    }
    localTimes();
    selected();
    status(stream ? "live" : "polling");
  } catch { status("offline"); } finally { reading = false; }
}
function soon() {
  clearTimeout(due);
  due = setTimeout(refresh, Math.max(0, PAUSE - (Date.now() - readAt)));
}
function listen() {
  if (stream || paused || document.hidden || !$("[data-live]")) return;
  if (POLL) return status("polling");
  stream = new EventSource(`${root}/events`);
  stream.addEventListener("changed", soon);
  stream.addEventListener("open", () => status("live"));
  stream.addEventListener("error", () => {
    status("polling");
    if (stream && stream.readyState === EventSource.CLOSED) { stream = null; }
  });
}
function hush() { stream?.close(); stream = null; }
document.addEventListener("visibilitychange", () => { if (document.hidden) hush(); else { listen(); soon(); } });
addEventListener("pagehide", hush);
setInterval(() => {
  const live = stream && stream.readyState === EventSource.OPEN;
  if (Date.now() - readAt > (live ? SLOW : WITHOUT_STREAM)) { listen(); refresh(); }
}, 2500);
function pause(now) {
  paused = now;
  stored("paused", paused ? "1" : "0");
  if (paused) { hush(); status("paused"); } else { listen(); soon(); }
}
// --- The form of an action opens in a dialog; without this file it is a page. -----------------------------------------------------
async function ask(address) {
  const answer = await fetch(address, { headers: { "X-Fragment": "1" } });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const form = $("form.confirm", fresh);
  if (!form) return location.assign(address);
  const dialog = document.body.appendChild(document.createElement("dialog"));
  dialog.setAttribute("aria-labelledby", "confirm-title");
  dialog.append(document.adoptNode(form));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  $("textarea, input:not([type=hidden])", dialog)?.focus();
}
document.addEventListener("click", (event) => {
  const at = event.target.closest("a, button, [data-copy]");
  if (!at || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (at.matches("a[data-dialog]")) { event.preventDefault(); ask(at.href); }
  else if (at.matches("dialog [data-close]")) { event.preventDefault(); at.closest("dialog").close(); }
  else if (at.matches("[data-pause]")) pause(!paused);
  else if (at.matches("[data-theme-next]")) nextTheme();
  else if (at.matches("[data-zone]")) { stored("zone", stored("zone") === "local" ? "utc" : "local"); localTimes(); }
  else if (at.matches("[data-copy]")) copy(at);
});
async function copy(button) {
  const text = $(button.dataset.copy).textContent;
  try { await navigator.clipboard.writeText(text); } catch { // without https the clipboard is closed
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text; area.select(); document.execCommand("copy"); area.remove();
  }
  button.textContent = "Copied";
}
// --- An upload shows how much was sent. X-Fragment: what became of it is said on the page that is opened then, and not before. --------
document.addEventListener("submit", (event) => {
  const form = event.target, bar = $("progress[data-upload]", form), sent = new XMLHttpRequest();
  if (!bar) return;
  event.preventDefault();
  sent.upload.onprogress = ({ loaded, total }) => { Object.assign(bar, { hidden: false, max: total, value: loaded }); };
  sent.onerror = () => HTMLFormElement.prototype.submit.call(form); // the browser says what is wrong
  sent.onload = () => { if (sent.status < 400) location.assign(sent.responseURL); else sent.onerror(); };
  sent.open("POST", form.action);
  sent.setRequestHeader("X-Fragment", "1");
  sent.send(new FormData(form));
});
// --- Checkboxes of a list. ------------------------------------------------------------------------------------------------------------
function selected() {
  const boxes = all("input[name=job]"), chosen = boxes.filter((one) => one.checked), every = $("[data-select-all]");
  if (every) { every.checked = boxes.length > 0 && chosen.length === boxes.length; every.indeterminate = chosen.length > 0 && !every.checked; }
  all("[data-selected]").forEach((one) => { one.textContent = `${chosen.length} selected:`; });
}
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) all("input[name=job]").forEach((one) => { one.checked = event.target.checked; });
  selected();
});
// --- Theme, and times in UTC or in the zone of the browser. -------------------------------------------------------------------------
const THEMES = ["auto", "light", "dark"];
function nextTheme() {
  const next = THEMES[(THEMES.indexOf(stored("theme") || "auto") + 1) % THEMES.length];
  stored("theme", next);
  document.documentElement.dataset.theme = next;
  themeName();
}
const themeName = () => all("[data-theme-next]").forEach((one) => { one.textContent = `Theme: ${stored("theme") || "auto"}`; });
function localTimes() {
  const local = stored("zone") === "local";
  all("[data-zone]").forEach((one) => { one.textContent = local ? "Times: local" : "Times: UTC"; });
  for (const one of all("time.clock")) {
    const at = new Date(one.dateTime);
    one.textContent = local ? at.toLocaleTimeString([], { hour12: false }) : at.toISOString().slice(11, 19);
    one.title = local ? at.toLocaleString() : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  }
}
// --- Suggestions for the filter: every option is the text before the cursor's word, and a word that completes it. ------------------
const box = $("input[data-words]");
if (box) {
  const words = JSON.parse(box.dataset.words), list = $("#suggestions");
  box.addEventListener("input", () => {
    const before = box.value.split(" "), word = before.pop();
    const fitting = words.filter((one) => one.startsWith(word) && one !== word).slice(0, 12);
    list.replaceChildren(...fitting.map((one) => {
      const option = document.createElement("option");
      option.value = [...before, one].join(" ");
      return option;
    }));
  });
  box.addEventListener("focus", () => box.dispatchEvent(new Event("input")));
}
// --- Keyboard. ----------------------------------------------------------------------------------------------------------------------
const GO = { o: "", j: "jobs", f: "failures", p: "pipelines", w: "workers", l: "locks", a: "audit", s: "system", t: "periodic" };
let leader = false;
function move(by) {
  const rows = all("tr[data-row]"), now = rows.indexOf(document.activeElement?.closest("tr[data-row]"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, now + by))];
  $("a", next || document.createElement("p"))?.focus();
}
const press = (label) => all("a[data-dialog]", document.activeElement?.closest("tr[data-row]") || $(".actions") || document)
  .find((one) => one.firstChild.textContent.trim() === label)?.click();
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key;
  if (leader && key in GO) { leader = false; location.assign(`${root}/${GO[key]}`); return; }
  leader = key === "g";
  if (key === "/") { event.preventDefault(); const at = $("input[type=search]"); if (at) at.focus(); else location.assign(`${root}/jobs`); }
  else if (key === "?") $("#keys")?.showModal();
  else if (key === "j") move(1);
  else if (key === "k") move(-1);
  else if (key === "p") pause(!paused);
  else if (key === "T") nextTheme();
  else if (key === "x") $("input[name=job]", document.activeElement?.closest("tr[data-row]") || document.createElement("p"))?.click();
  else if (key === "r") press("Retry");
  else if (key === "c") press("Cancel");
});

themeName();
localTimes();
if (paused) status("paused"); else listen();
