// The live view: looks at stats.json every second and shows what has grown since the look before. Texts of the server's
// are put in as texts, never as markup.
"use strict";

const PERIOD = 1000;
const KEPT = 120;
const ROWS = 12;
const history = { calls: [], read: [], written: [], cpu: [] };
let last = null;

const element = (id) => document.getElementById(id);

function scaled(count, step, units) {
  let unit = 0;
  while (Math.abs(count) >= 1000 && unit < units.length - 1) {
    count /= step;
    unit += 1;
  }
  return (unit === 0 || count >= 99.95 ? count.toFixed(0) : count.toFixed(1)) + units[unit];
}
const number = (count) => scaled(count, 1000, ["", "k", "M", "G"]);
const octets = (count) => scaled(count, 1024, ["", "K", "M", "G", "T"]);

function duration(seconds) {
  if (seconds < 0.9995e-3) return (seconds * 1e6).toFixed(0) + " µs";
  if (seconds < 0.9995) return Number((seconds * 1e3).toPrecision(3)) + " ms";
  return seconds.toFixed(1) + " s";
}

const mean = (seconds, count) => (count ? duration(seconds / count) : "–");

function quantile(bounds, buckets, part) {
  const whole = buckets.reduce((sum, count) => sum + count, 0);
  let soFar = 0;
  for (let place = 0; place < buckets.length; place += 1) {
    soFar += buckets[place];
    if (whole && soFar >= part * whole) return place < bounds.length ? bounds[place] : 2 * bounds[bounds.length - 1];
  }
  return 0;
}

function grown(now, before) {
  const found = {};
  for (const [name, value] of Object.entries(now)) found[name] = value - ((before || {})[name] || 0);
  return found;
}

function between(before, now) {
  const calls = Object.fromEntries(before.calls.map((row) => [row.call, row]));
  const users = (what) => Object.entries(now[what]).map(([name, amount]) => ({ name, ...grown(amount, before[what][name]) }));
  return {
    elapsed: now.uptime - before.uptime,
    cpu: now.cpu - before.cpu,
    exports: users("exports"),
    clients: users("clients"),
    rdma: grown(now.rdma, before.rdma),
    calls: now.calls.map((row) => {
      const then = calls[row.call] || { count: 0, seconds: 0, buckets: row.buckets.map(() => 0) };
      return {
        call: row.call,
        count: row.count - then.count,
        seconds: row.seconds - then.seconds,
        buckets: row.buckets.map((count, place) => count - then.buckets[place]),
      };
    }),
  };
}

function cells(row, kind, texts) {
  for (const text of texts) {
    const cell = document.createElement(kind);
    cell.textContent = text;
    row.append(cell);
  }
  return row;
}

function table(id, heads, rows, nothing) {
  const body = [];
  if (heads.length) body.push(cells(document.createElement("tr"), "th", heads));
  for (const row of rows.slice(0, ROWS)) body.push(cells(document.createElement("tr"), "td", row));
  if (!rows.length || rows.length > ROWS) {
    const cell = document.createElement("td");
    cell.className = "nothing";
    cell.colSpan = Math.max(heads.length, 1);
    cell.textContent = rows.length ? `… and ${rows.length - ROWS} more` : nothing;
    const row = document.createElement("tr");
    row.append(cell);
    body.push(row);
  }
  element(id).replaceChildren(...body);
}

function chart(name, value, text) {
  const values = history[name];
  values.push(value);
  if (values.length > KEPT) values.shift();
  element(`${name}-now`).textContent = text;
  const most = Math.max(...values, 1e-9);
  const points = values.map((one, place) => `${KEPT - values.length + place},${(38 - (36 * one) / most).toFixed(2)}`);
  const svg = element(`${name}-chart`);
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", `M${points.join("L")}`);
  const area = document.createElementNS("http://www.w3.org/2000/svg", "path");
  area.setAttribute("class", "area");
  area.setAttribute("d", `M${KEPT - values.length},40L${points.join("L")}L${KEPT - 1},40Z`);
  svg.replaceChildren(area, line);
}

function showUsers(id, what, rows, per) {
  rows.sort((a, b) => b.read + b.written - a.read - a.written || b.calls - a.calls || a.name.localeCompare(b.name));
  const lines = rows.map((row) => [
    row.name, number(row.calls * per), number(row.errors * per), octets(row.read * per), octets(row.written * per),
    mean(row.seconds, row.calls),
  ]);
  table(id, [what, "calls/s", "errors/s", "read/s", "written/s", "mean"], lines, "none yet");
}

function showNotes(now, delta) {
  const notes = [...now.notes];
  const busy = delta.cpu / delta.elapsed;
  if (busy >= 0.9) notes.push(`the server's thread is busy: ${(100 * busy).toFixed(0)} % of a processor`);
  if (delta.rdma.starved_grants) {
    notes.push(`${delta.rdma.starved_grants} replies over RDMA granted fewer credits than asked for: no memory for Receives`);
  }
  element("notes").replaceChildren(...(notes.length ? notes : ["nothing is slow"]).map((note) => {
    const item = document.createElement("li");
    item.textContent = note;
    if (!notes.length) item.className = "good";
    return item;
  }));
}

function show(now, delta) {
  const per = 1 / delta.elapsed;
  const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);
  const calls = sum(delta.calls, "count") * per;
  const read = sum(delta.exports, "read") * per;
  const written = sum(delta.exports, "written") * per;
  const cpu = 100 * delta.cpu * per;
  chart("calls", calls, number(calls));
  chart("read", read, octets(read));
  chart("written", written, octets(written));
  chart("cpu", cpu, `${cpu.toFixed(0)} %`);
  showNotes(now, delta);
  showUsers("exports", "export", delta.exports, per);
  showUsers("clients", "client", delta.clients, per);
  const busy = delta.calls.filter((row) => row.count).sort((a, b) => b.count - a.count);
  table("operations", ["operation", "calls/s", "mean", "p50", "p99"], busy.map((row) => [
    row.call, number(row.count * per), mean(row.seconds, row.count),
    duration(quantile(now.bounds, row.buckets, 0.5)), duration(quantile(now.bounds, row.buckets, 0.99)),
  ]), "no calls");
  table("inflight", ["call", "client", "over", "export", "age", "reason"], now.inflight.map((row) => [
    row.call, row.client, row.over, row.export || "–", duration(row.seconds), row.why || "–",
  ]), "none");
  const rates = { calls: "calls", "RDMA Reads": "reads", "RDMA Writes": "writes", "long calls": "long_calls",
    "long replies": "long_replies", invalidations: "invalidations" };
  table("rdma", [], [
    ...Object.entries(rates).map(([label, name]) => [label, `${number((delta.rdma[name] || 0) * per)}/s`]),
    ["octets by RDMA Read", `${octets((delta.rdma.read_bytes || 0) * per)}/s`],
    ["octets by RDMA Write", `${octets((delta.rdma.write_bytes || 0) * per)}/s`],
    ["credits granted, in use", `${now.credits.limit}, ${now.credits.outstanding}`],
    ["Receives posted", `${now.credits.posted}`],
    ...Object.entries(now.devices).map(([name, counters]) => [name,
      Object.entries(counters).map(([what, count]) => `${what.replaceAll("_", " ")} ${count}`).join(", ")]),
  ], "");
  table("memory", [], [
    ...Object.entries(now.memory).map(([name, count]) => [`buffers, ${name.replaceAll("_", " ")}`, octets(count)]),
    ["threads that wait for disks", `${now.workers.running} of ${now.workers.threads}`],
    ["jobs that wait for a thread", `${now.workers.queued}`],
  ], "");
  table("held", [], [
    ...Object.entries(now.held).map(([name, count]) => [name.replaceAll("_", " "), number(count)]),
    ["grace period", now.grace ? `${now.grace.toFixed(0)} s left` : "over"],
    ["connections", `${now.connections.reduce((total, row) => total + row.open, 0)}`],
    ["calls that wait", `${now.waiting}`],
  ], "");
}

async function look() {
  const state = element("state");
  try {
    const answer = await fetch("stats.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const now = await answer.json();
    element("version").textContent = now.version;
    const minutes = Math.floor(now.uptime / 60);
    state.textContent = `up ${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    state.className = "";
    if (last && now.uptime > last.uptime) show(now, between(last, now));
    last = now;
  } catch (error) {
    state.textContent = `no answer: ${error.message}`;
    state.className = "lost";
  }
  setTimeout(look, PERIOD);
}

look();
