// Adds to pages that work without it: local times, the reading under the pointer, and the choice of theme.
"use strict";

/** Shows the local time of a time in UTC when the pointer or the keyboard reaches it. */
function showLocalTimes() {
  const show = (event) => {
    const time = event.target.closest?.("time");
    if (!time || time.title) return;
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = `${at.toLocaleString()} here`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
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

showLocalTimes();
for (const button of document.querySelectorAll(".theme")) chooseTheme(button);
