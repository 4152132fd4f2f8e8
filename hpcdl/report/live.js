/* Says how old the page is, and marks it as stale once nobody writes it any more. */
(() => {
  const page = document.documentElement;
  const at = 1000 * page.dataset.at, every = 1000 * page.dataset.every;
  const out = document.getElementById("age");
  const words = s => s < 90 ? s + " s" : s < 5400 ? Math.round(s / 60) + " min"
    : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
  const show = () => {
    const age = Math.max(0, Date.now() - at);
    out.textContent = words(Math.round(age / 1000)) + " old";
    if (every > 0 && age > 3 * every + 15000) {
      page.classList.add("stale");
      out.textContent += ": nobody writes it any more";
    }
  };
  show();
  setInterval(show, 1000);
})();
