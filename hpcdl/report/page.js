/* What pages do beside being read: tables sort, one filter finds jobs, a timeline zooms, a page that is written again
   says how old it is, and one that is served asks for what is new. No page needs it to be read. */
(() => {
  const root = document.documentElement, data = root.dataset;
  const make = (tag, attributes, ...inside) => {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...inside);
    return made;
  };
  const kept = {
    get: name => { try { return sessionStorage.getItem(location.pathname + name) || ""; } catch { return ""; } },
    set: (name, value) => { try { sessionStorage.setItem(location.pathname + name, value); } catch { /* private */ } },
  };

  // --- tables ---
  const order = new Intl.Collator(undefined, { numeric: true });
  const key = (row, place) => row.cells[place].dataset.v ?? row.cells[place].textContent.trim();
  const sort = (table, place, way) => {
    const body = table.tBodies[0];
    [...body.rows].forEach((row, at) => { row.dataset.at ??= at; row.hidden = row.classList.contains("heading") && way !== 0; });
    const rows = [...body.rows].sort((a, b) => a.dataset.at - b.dataset.at);
    const compare = (a, b) => {
      if (!a.cells[place] || !b.cells[place]) return 0;
      const x = key(a, place), y = key(b, place), difference = x - y;
      return way * (Number.isNaN(difference) ? order.compare(x, y) : difference);
    };
    if (way) rows.sort((a, b) => {  // members stay below their array
      const one = a.array || a, other = b.array || b;
      if (one !== other) return compare(one, other) || one.dataset.at - other.dataset.at;
      return (b === one) - (a === one) || compare(a, b);
    });
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, at) => head.hasAttribute("aria-sort") && head.setAttribute(
      "aria-sort", at !== place || !way ? "none" : way > 0 ? "ascending" : "descending"));
  };
  const name = table => "sort " + (table.caption ? table.caption.textContent : "");
  const sortable = table => {
    if (!table.tHead || table.tBodies[0].rows.length < 3 || table.closest(".compare,.beside")) return;
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (!head.textContent) return;
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const way = before === "none" ? 1 : before === "ascending" ? -1 : 0;
        sort(table, place, way);
        kept.set(name(table), way ? place + " " + way : "");
        filter();
      });
    });
    const [place, way] = kept.get(name(table)).split(" ").map(Number);
    if (way && place < table.tHead.rows[0].cells.length) sort(table, place, way);
  };

  // The row of an array is a button that unfolds its members.
  const foldable = table => {
    let array = null;
    [...table.tBodies[0].rows].forEach(row => {
      if (row.classList.contains("member")) { row.array = array; array.members.push(row); return; }
      if (!row.classList.contains("array")) return;
      array = row;
      row.members = [];
      row.button = make("button", { type: "button" }, ...row.cells[0].childNodes);
      row.cells[0].append(row.button);
      const name = "array " + row.dataset.array;
      row.button.addEventListener("click", () => { kept.set(name, kept.get(name) ? "" : "open"); filter(); });
    });
  };

  // --- the filter ---
  const main = document.querySelector("main");
  const search = make("input", { type: "search", id: "filter", placeholder: "name, number, state …", autocomplete: "off" });
  const found = make("span", { role: "status" });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = text => words.every(word => text.toLowerCase().includes(word));
    let shown = 0, all = 0;
    main.querySelectorAll("tbody").forEach(body => {
      const sorted = body.parentNode.querySelector("[aria-sort=ascending],[aria-sort=descending]");
      let heading = null, fit = false;
      const done = () => { if (heading) heading.hidden = Boolean(sorted) || !fit; };
      [...body.rows].forEach(row => {
        if (row.classList.contains("heading")) { done(); heading = row; fit = false; return; }
        if (row.array) return;
        if (row.members) {  // those that are found are shown, also where it is folded; all of them are that array
          const some = row.members.filter(member => fits(member.textContent));
          const found = some.length || !fits(row.textContent) ? some : row.members;
          const open = found.length < row.members.length || kept.get("array " + row.dataset.array);
          row.hidden = !found.length;
          row.members.forEach(member => { member.hidden = !open || !found.includes(member); });
          row.button.setAttribute("aria-expanded", Boolean(open));
          all += row.members.length; shown += found.length;
          return;
        }
        row.hidden = words.length > 0 && !fits(row.textContent) && !(heading && !sorted && fits(heading.textContent + row.textContent));
        fit ||= !row.hidden; all += 1; shown += row.hidden ? 0 : 1;
      });
      done();
    });
    main.querySelectorAll("svg.bar[data-job]").forEach(bar => bar.classList.toggle(
      "dim", words.length > 0 && !fits(bar.querySelector("title").textContent)));
    main.querySelectorAll(".of-job").forEach(part => {
      part.hidden = words.length > 0 && !fits(part.querySelector("h3").textContent + " " + part.dataset.state);
    });
    found.textContent = words.length ? shown + " of " + all + " rows" : "";
  };
  const tools = make("div", { class: "tools", role: "search" }, make("label", { for: "filter" }, "Filter"), search, found);
  search.value = kept.get("filter");
  search.addEventListener("input", () => { kept.set("filter", search.value); filter(); });

  // --- the timeline ---
  const zooms = new WeakMap();
  const zoomable = drawing => {
    const plot = drawing.querySelector(".plot"), svg = plot.querySelector("svg");
    const reset = make("button", { type: "button" }, "All");
    const closer = make("button", { type: "button", "aria-label": "Zoom in" }, "+");
    const wider = make("button", { type: "button", "aria-label": "Zoom out" }, "−");
    const hint = make("span", { class: "hint" }, "or draw over the times to look closer at");
    const row = make("div", { class: "tools" }, closer, wider, reset, hint);
    drawing.before(row);
    const zoom = (scale, middle) => {
      scale = Math.min(400, Math.max(1, scale));
      zooms.set(drawing, scale);
      svg.setAttribute("width", 100 * scale + "%");
      plot.scrollLeft = middle * svg.getBoundingClientRect().width - plot.clientWidth / 2;
      kept.set("zoom", scale > 1 ? scale + " " + middle : "");
      label(drawing);
    };
    const middle = () => (plot.scrollLeft + plot.clientWidth / 2) / svg.getBoundingClientRect().width;
    closer.addEventListener("click", () => zoom(2 * (zooms.get(drawing) || 1), middle()));
    wider.addEventListener("click", () => zoom((zooms.get(drawing) || 1) / 2, middle()));
    reset.addEventListener("click", () => zoom(1, 0.5));
    let begin = null, brush = null;
    const at = event => event.clientX - plot.getBoundingClientRect().left + plot.scrollLeft;
    plot.addEventListener("pointerdown", event => {
      if (event.button || event.pointerType === "touch") return;
      begin = at(event);
    });
    plot.addEventListener("pointermove", event => {
      if (begin === null || (!brush && Math.abs(at(event) - begin) < 4)) return;
      if (!brush) { brush = make("div", { class: "brush" }); plot.append(brush); plot.setPointerCapture(event.pointerId); }
      brush.style.left = Math.min(begin, at(event)) + "px";
      brush.style.width = Math.abs(at(event) - begin) + "px";
    });
    plot.addEventListener("pointerup", event => {
      const bar = event.target.closest(".bar[data-job]"), width = svg.getBoundingClientRect().width;
      if (brush) {
        brush.remove();
        const one = begin, other = at(event);
        zoom(plot.clientWidth / Math.max(2, Math.abs(one - other)) * (width / plot.clientWidth), (one + other) / 2 / width);
      } else if (begin !== null && bar && data.jobHref) location.href = data.jobHref + bar.dataset.job;
      begin = brush = null;
    });
    plot.addEventListener("pointercancel", () => { if (brush) brush.remove(); begin = brush = null; });
    const [scale, place] = kept.get("zoom").split(" ").map(Number);
    if (scale > 1) zoom(scale, place); else label(drawing);
  };

  // The longest of these that has room: with its GPUs, the name, what tells it from others of its array, the number.
  const label = drawing => drawing.querySelectorAll("svg.bar[data-job]").forEach(bar => {
    const first = bar.querySelector("title").textContent.split("\n")[0], end = first.lastIndexOf(": job ");
    const name = first.slice(0, end), gpus = (/[0-9]+ GPUs?$/.exec(first) || [""])[0], job = bar.dataset.job;
    const member = /\[([^[\]]*=[^[\]]*)\]$/.exec(name);
    const short = member ? job + " [" + member[1].replace(/[^,=]*=/g, "") + "]" : job + " " + name.slice(0, 12) + "…";
    const room = bar.width.baseVal.value - 12, letter = innerWidth > 700 ? 7.5 : 6.7;
    const shown = [name + (gpus && " · " + gpus), name, short, job].find(text => letter * text.length <= room) || "";
    let text = bar.querySelector("text");
    const height = bar.height.baseVal.value;
    if (height < 20) return;  // a background, below its foreground, or at the gate
    if (!text && shown) {
      text = document.createElementNS(bar.namespaceURI, "text");
      text.setAttribute("class", "name");
      text.setAttribute("x", 6);
      text.setAttribute("y", 26 * ((Math.round((height + 2) / 26) - 1) >> 1) + 16);
      bar.append(text);
    }
    if (!text || text.textContent === shown) return;
    text.textContent = shown;
    if (shown !== name && shown.startsWith(name)) {
      const more = document.createElementNS(bar.namespaceURI, "tspan");
      more.setAttribute("class", "count");
      more.textContent = shown.slice(name.length);
      text.textContent = name;
      text.append(more);
    }
  });
  addEventListener("resize", () => document.querySelectorAll(".zoomable").forEach(label));

  const dress = part => {
    part.querySelectorAll("table").forEach(table => { foldable(table); sortable(table); });
    part.querySelectorAll(".zoomable").forEach(zoomable);
    choices(part);
    part.querySelectorAll(".table").forEach(box => {
      const caption = box.querySelector("caption");
      if (box.scrollWidth > box.clientWidth && caption) {
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", caption.textContent);
      }
    });
  };

  // --- its age ---
  const out = () => document.getElementById("age");
  const words = s => s < 90 ? s + " s" : s < 5400 ? Math.round(s / 60) + " min"
    : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
  let away = "";
  const age = () => {
    if (!out()) return;
    const old = Math.max(0, Date.now() - 1000 * data.at), every = 1000 * data.every;
    out().textContent = words(Math.round(old / 1000)) + " old" + (away && ": " + away);
    // Of a served page its server says so: the clocks of two computers differ.
    if (every > 0 && !("served" in data) && old > 3 * every + 15000) {
      root.classList.add("stale");
      out().textContent += ": nobody writes it any more";
    }
  };

  // --- a served page: what is new of it, and of the log ---
  const refresh = async () => {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(60000) });
      if (answer.status === 403) { away = "its session is over: open the link of hpcdl web again"; return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!fresh.documentElement.dataset.at) throw new Error("no page");
      away = "";
      root.className = fresh.documentElement.className;
      data.at = fresh.documentElement.dataset.at;
      const parts = [...fresh.querySelectorAll("main > [id]")];
      let before = null;
      main.querySelectorAll(":scope > [id]").forEach(old => { if (!parts.some(part => part.id === old.id)) old.remove(); });
      parts.forEach(part => {
        const old = document.getElementById(part.id), text = part.outerHTML;
        const busy = old && (old.contains(document.activeElement) && part.id === "output" || old.querySelector(".brush"));
        if (!old || (!busy && was.get(part.id) !== text && part.id !== "log")) {
          if (old) old.replaceWith(part); else if (before) before.after(part); else main.append(part);
          dress(part);
        }
        if (!busy) was.set(part.id, text);
        before = document.getElementById(part.id);
      });
      filter();
      age();
    } catch { away = "hpcdl web does not answer"; root.classList.add("stale"); }
  };
  const was = new Map();

  // --- the output of a job: what is chosen of it, as it comes ---
  const LONGEST = 400000;
  let output = "", cursor = "", asked = 0;
  const chosen = {};
  const draw = (log, more) => {
    const end = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const only = (chosen.lines || "").toLowerCase();
    const fits = line => line.toLowerCase().includes(only);
    if (more && !only) log.append(more);  // what is selected stays so
    else log.textContent = only ? output.split("\n").filter(fits).join("\n") : output;
    if (end) log.scrollTop = log.scrollHeight;
  };
  const choices = part => part.querySelectorAll("#output [name]").forEach(field => {
    const keep = () => { chosen[field.name] = field.value; kept.set(field.name, field.value); };
    field.value = kept.get(field.name);
    if (field.selectedIndex < 0) field.value = "";
    keep();
    field.addEventListener("input", () => {
      keep();
      const log = document.getElementById("log");
      if (field.name !== "lines") { output = cursor = ""; read(log); }
      draw(log);
    });
  });
  const read = async log => {
    const number = ++asked;  // an answer for what was chosen before is not wanted any more
    try {
      const query = new URLSearchParams({ after: cursor, of: chosen.of || "", stream: chosen.stream || "" });
      const answer = await fetch(log.dataset.source + "?" + query);
      const text = await answer.text();
      if (number !== asked) return;
      if ([400, 414, 431].includes(answer.status)) { output = cursor = ""; draw(log); }  // it cannot take that cursor
      if (!answer.ok) return;
      cursor = answer.headers.get("X-Log-After");
      if (!text) return;
      output += text;
      const long = output.length > LONGEST;
      if (long) output = output.slice(-0.75 * LONGEST);
      draw(log, long ? "" : text);
    } catch { /* the page says that nobody answers */ }
  };
  const follow = log => read(log).then(() => setTimeout(follow, 1000, log));

  if (main.querySelectorAll("tbody tr").length > 5 && main.querySelector(".cards")) {
    const first = main.querySelector("header, h1");
    if (first) first.after(tools); else main.prepend(tools);
  }
  if ("served" in data) main.querySelectorAll(":scope > [id]").forEach(part => was.set(part.id, part.outerHTML));
  dress(main);
  filter();
  if (data.at) { age(); setInterval(age, 1000); }
  const again = () => setTimeout(() => refresh().then(again), 1000 * data.every);  // never two at a time
  if ("served" in data) again();
  const log = document.getElementById("log");
  if (log) follow(log);
})();
