// Fetches the page again each second and puts in the sections that have changed. Everything works without it.
"use strict";
(() => {
  const [time, news, toggle] = ["live-time", "live-news", "live-toggle"].map((id) => document.getElementById(id));
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let paused = false, failures = 0, timer = 0;

  const seconds = () => Number(document.body.dataset.refresh) * (calm.matches ? 5 : 1);

  function plan() {
    clearTimeout(timer);
    toggle.hidden = seconds() === 0;
    if (seconds() > 0 && !paused && !document.hidden) {
      timer = setTimeout(look, 1000 * Math.min(seconds() * 2 ** failures, 15));
    }
  }

  async function look() {
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(20000) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      failures = 0;
    } catch {
      failures = Math.min(failures + 1, 4);
    }
    news.textContent = failures > 1 ? "No answer: this page is not up to date." : "";
    plan();
  }

  const stops = (section) => [...section.querySelectorAll("a, button, [tabindex]")];

  function show(page) {
    if (paused || !getSelection().isCollapsed) return; // the user is selecting text
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (fresh === null || fresh.innerHTML === old.innerHTML) continue;
      const focus = stops(old).indexOf(document.activeElement);
      const offsets = [...old.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
      old.replaceChildren(...fresh.childNodes);
      old.querySelectorAll(".scroll").forEach((each, index) => (each.scrollLeft = offsets[index] ?? 0));
      stops(old)[focus]?.focus({ preventScroll: true });
    }
    document.title = page.title;
    document.body.dataset.refresh = page.body.dataset.refresh;
    time.replaceChildren(...page.getElementById(time.id).childNodes);
  }

  toggle.addEventListener("click", () => {
    paused = !paused;
    toggle.textContent = paused ? "Resume" : "Pause";
    plan();
  });
  document.addEventListener("visibilitychange", plan);
  document.addEventListener("click", async ({ target }) => {
    if (target.dataset.copy === undefined) return;
    await navigator.clipboard.writeText(document.getElementById(target.dataset.copy).textContent);
    target.textContent = "Copied";
  });

  const tokens = document.querySelectorAll("input[name=token]"); // one for all forms
  for (const token of tokens) { // kept by this tab alone, until it is closed
    token.value = sessionStorage.getItem("token") ?? "";
    token.addEventListener("input", () => tokens.forEach((each) => (each.value = token.value)));
    token.form.addEventListener("submit", () => sessionStorage.setItem("token", token.value));
  }
  document.documentElement.classList.add("scripted");
  plan();
})();
