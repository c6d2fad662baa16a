// Adds to pages that work without it: local times, the reading under the pointer, and the choice of theme.
"use strict";

const WINDOW_MS = 600_000;
const RUN = /M([\d.]+) [\d.]+h(\d+)/g;

/** Shows the local time of a time in UTC when the pointer or the keyboard reaches it. */
function showLocalTimes() {
  const show = (event) => {
    const time = event.target.closest?.("time") ?? event.target.querySelector?.(":scope > time");
    if (!time || time.title) return;
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = `${at.toLocaleString()} here`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
}

/** The state of a rail at a window: that of the topmost path that covers it. */
function stateAt(rail, window) {
  let state = "complete";
  for (const path of rail.querySelectorAll("path:not(.complete)"))
    for (const [, start, length] of path.getAttribute("d").matchAll(RUN))
      if (window >= +start && window < +start + +length) state = path.getAttribute("class");
  return state === "empty" ? "no messages" : state;
}

/** Shows the time and the state under the pointer, and lets the link of a rail lead to this time. */
function readRails(table) {
  const first = +table.dataset.first;
  const count = +table.dataset.count;
  const label = Object.assign(document.createElement("p"), { className: "reading", hidden: true });
  document.body.append(label);
  table.addEventListener("pointermove", (event) => {
    const rail = event.target.closest(".line")?.querySelector(".rail");
    label.hidden = !rail;
    if (!rail) return;
    const box = rail.getBoundingClientRect();
    const window = Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
    const start = new Date(first + window * WINDOW_MS);
    const utc = start.toISOString().slice(0, 16).replace("T", " ");
    const here = start.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    label.textContent = `${utc} UTC · ${here} here · ${stateAt(rail, window)}`;
    label.style.left = `${Math.min(event.clientX + 14, innerWidth - label.offsetWidth - 8)}px`;
    label.style.top = `${event.clientY + 18}px`;
    const link = rail.closest("a");
    if (link) link.search = new URLSearchParams({ range: "24h", at: +start });
  });
  table.addEventListener("pointerleave", () => (label.hidden = true));
}

function filterWhileTyping(field, rows) {
  field.addEventListener("input", () => {
    const words = field.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.querySelector("th").textContent.toLowerCase().includes(words);
  });
}

function chooseTheme(button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `headrace-theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  });
}

/** Replaces the parts of a page whose action is not done yet, until it is. */
function followAction() {
  const parts = document.querySelector("#action-parts[data-moving]");
  if (!parts) return;
  setTimeout(async () => {
    try {
      const response = await fetch(location.href);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const next = page.querySelector("#action-parts");
      if (!next) return location.reload();
      const status = document.querySelector("#action-state");
      const words = page.querySelector("#action-state").textContent;
      if (status.textContent !== words) status.textContent = words;
      if (next.innerHTML !== parts.innerHTML) {
        const hadFocus = parts.contains(document.activeElement);
        parts.replaceChildren(...next.childNodes);
        if (hadFocus) document.querySelector("#main").focus();
      }
      parts.toggleAttribute("data-moving", next.hasAttribute("data-moving"));
    } catch {
      // The console does not respond: try again.
    }
    followAction();
  }, 1500);
}

showLocalTimes();
followAction();
if (document.querySelector("[data-load-again]")) setTimeout(() => location.reload(), 3000);
for (const table of document.querySelectorAll("[data-first]")) readRails(table);
for (const field of document.querySelectorAll(".find input[placeholder]"))
  filterWhileTyping(field, document.querySelectorAll(".rails tbody tr"));
for (const button of document.querySelectorAll(".theme")) chooseTheme(button);
