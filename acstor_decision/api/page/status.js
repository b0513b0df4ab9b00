// SPDX-License-Identifier: Apache-2.0
// The status page: polls the REST API and draws the answers.
//
// Hosts and tenants choose some of the texts, so all of them enter the document as text nodes
// without control characters. Words and units are those of "openstack acstor".

const PERIOD_S = 10;
const BUSY_FACTOR = 9; // the API rests nine times as long as it worked for this page
const IMAGES_PERIOD_S = 60; // each list costs requests to Glance
const MAX_BACKOFF_S = 300;
const TIMEOUT_S = 60;
const MAX_HOSTS = 25;
const MAX_IMAGES = 100;
const MAX_BOOTS = 10;
const MAX_FLOW_HOSTS = 24;
const MAX_FLOW_ROWS = 30;
const MIB = 1024 * 1024;
const SVG = "http://www.w3.org/2000/svg";

const VIAS = ["boot", "frame", "cache", "peer", "home", "source"];
const WAITS = {
  zero: "zeros",
  boot: "boot image, in memory",
  cache: "cache of this host",
  frame: "boot image, on its way",
  peer: "another host",
  home: "another host, the chunk's home",
  source: "source",
  failed: "reads that failed",
  pending: "reads that go on",
};

const state = {
  token: "", // in memory only; never in a URL or in the browser's storage
  session: 0, // answers to requests of an earlier session are dropped
  isRunning: false,
  isPaused: false,
  isWanted: false, // an update is wanted as soon as the running one has ended
  failures: 0,
  timer: 0,
  dueAt: 0,
  imagesDueAt: 0,
  boot: null, // {server, host} of the timeline; no host: the newest boot
  isBootOver: false,
};

const byId = (id) => document.getElementById(id);

// The document

function printable(given) {
  return String(given).replace(/[\p{C}\p{Z}]/gu, (c) => (c === " " ? c : "?"));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, printable(value));
  }
  const isNode = (child) => child instanceof Node;
  element.append(...children.flat().map((child) => (isNode(child) ? child : printable(child))));
  return element;
}

const html = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** Replace what an element has; the focus stays on what has the same key. */
function replace(id, ...children) {
  const key = byId(id).contains(document.activeElement) && document.activeElement.dataset.key;
  byId(id).replaceChildren(...children);
  if (key) [...byId(id).querySelectorAll("[data-key]")].find((e) => e.dataset.key === key)?.focus();
}

/** Return a table; titles that begin with "#" are of numbers. */
function table(caption, titles, rows) {
  const kinds = titles.map((title) => (title.startsWith("#") ? "number" : ""));
  const head = titles.map((title, at) =>
    html("th", { scope: "col", class: kinds[at] }, title.replace("#", "")));
  const cell = (value, at) =>
    value instanceof HTMLTableCellElement ? value : html("td", { class: kinds[at] }, value ?? "");
  const body = rows.map((row) => html("tr", {}, row.map(cell)));
  return html("table", {}, html("caption", {}, caption),
    html("thead", {}, html("tr", {}, head)), html("tbody", {}, body));
}

const nameCell = (name) => html("td", { class: "name", title: name }, html("bdi", {}, name));
const paragraph = (text) => html("p", { class: "hint" }, text);

// Words, as in acstor_osc

function mib(bytes) {
  const count = bytes / MIB;
  const shown = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
  if (count >= 1 || !count) return `${count.toLocaleString("en-US", shown)} MiB`;
  return `${Number(count.toPrecision(2))} MiB`;
}

const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) : "-");
const time = (text) => (text ? `${text.slice(0, 19).replace("T", " ")} UTC` : "");
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const entries = (counts) => Object.entries(counts);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

function hostsText(counts) {
  const shown = [`${counts.up} up`];
  for (const name of ["overloaded", "silent"]) {
    if (counts[name]) shown.push(`${counts[name]} ${name}`);
  }
  if (counts.waiting) shown.push(`${counts.waiting} waiting for approval`);
  if (counts.drained) shown.push(`${counts.drained} drained`);
  const versions = Object.keys(counts.versions).filter(Boolean);
  if (!versions.length) return [shown.join(", ")];
  return [shown.join(", "), `acstor ${versions.join(", ")}`];
}

function ringText(ring) {
  if (!ring) return ["no v-node table was published"];
  return [
    `epoch ${ring.epoch}, ${ring.hosts} hosts`,
    `published at ${time(ring.published_at)}; ${ring.up_to_date_hosts} hosts use it`,
  ];
}

function imagesText(counts) {
  if (!counts) return ["Glance does not answer"];
  const shown = [`${counts.ready} ready`];
  for (const name of ["preparing", "failed"]) {
    if (counts[name]) shown.push(`${counts[name]} ${name}`);
  }
  const lines = [shown.join(", ") + (counts.is_complete ? "" : ", among the first of them")];
  if (counts.unsupported_total) lines.push(`${counts.unsupported_total} unsupported:`);
  return [...lines, ...entries(counts.unsupported).map(([why, times]) => `${times}: ${why}`)];
}

function guestsText(counts) {
  const lines = ["no read waits"];
  if (counts.waiting_requests) {
    const oldest = counts.longest_wait_s.toFixed(0);
    lines[0] = `${counts.waiting_requests} reads wait, the oldest for ${oldest} s`;
  }
  if (counts.failed_reads) lines.push(`${counts.failed_reads} reads failed in the last hour`);
  for (const [why, times] of entries(counts.fallbacks)) {
    lines.push(`fallbacks to Nova's download in the last hour: ${why}, ${times}`);
  }
  return lines;
}

function checkpointsText(counts) {
  if (!counts.servers) return ["none"];
  const oldest_min = (counts.oldest_age_s / 60).toFixed(0);
  return [`${counts.servers} servers, the oldest ${oldest_min} min ago`];
}

// Sections

function showStatus(status) {
  const health = byId("health");
  if (health.textContent !== status.health) health.textContent = printable(status.health);
  health.className = `badge ${["ok", "warning"].includes(status.health) ? status.health : "error"}`;
  health.hidden = false;
  replace("updated", `at ${time(status.now)}`);
  const { hosts, guests, images, images_in_use: uses } = status;
  const isBehind = uses.fully_cached < uses.used;
  const parts = [
    ["Hosts", hostsText(hosts), hosts.overloaded || hosts.silent || hosts.waiting],
    ["Waiting reads", guestsText(guests),
      guests.waiting_requests || guests.failed_reads || entries(guests.fallbacks).length],
    ["Images in use", [`${uses.fully_cached} of ${uses.used} fully cached`], isBehind],
    ["Images", imagesText(images), !images || images.failed],
    ["V-node table", ringText(status.ring), !status.ring],
    ["Checkpoints", checkpointsText(status.checkpoints), false],
  ];
  replace("overview", ...parts.map(([title, lines, isTrouble]) =>
    html("div", { class: isTrouble ? "trouble" : "" }, html("dt", {}, title),
      html("dd", {}, lines.map((line) => html("div", {}, line))))));
  const none = [paragraph("none")];
  replace("findings", ...(status.findings.length ? status.findings.map(finding) : none));
  return hosts;
}

function finding(found) {
  const more = found.count - found.subjects.length;
  const subjects = found.subjects.map((subject) => html("li", {}, html("bdi", {}, subject)));
  if (more > 0) subjects.push(html("li", {}, `and ${more} more`));
  return html("div", { class: `finding ${found.severity === "error" ? "error" : ""}` },
    html("p", {}, html("span", { class: "severity" }, found.severity.toUpperCase()), ": ",
      found.message + (found.count ? ` (${found.count})` : "")),
    subjects.length ? html("ul", {}, subjects) : "",
    html("p", {}, "> ", found.remedy));
}

function showHosts({ hosts }, counts) {
  const known = counts.up + counts.silent + counts.waiting;
  const titles = ["Host", "State", "Enrolment", "Location", "#V-nodes", "#Epoch", "#Load %",
    "#Cache", "Last Seen"];
  const caption = hosts.length < MAX_HOSTS ? plural(hosts.length, "host")
    : `The first ${hosts.length} hosts of ${known}: openstack acstor host list shows all`;
  replace("hosts", table(caption, titles, hosts.map(hostRow)));
}

function hostRow(host) {
  const busier = Math.max(host.rates.received, host.rates.sent);
  const load = host.link_bytes_s ? Math.round((100 * busier) / host.link_bytes_s) : 0;
  return [
    nameCell(host.host),
    html("td", { class: host.state }, host.state + (host.is_drained ? ", drained" : "")),
    host.enrolment ? host.enrolment.state : "none",
    nameCell(host.location),
    host.vnodes,
    host.ring_epoch,
    load,
    `${mib(host.cache_bytes)} of ${mib(host.cache_limit_bytes)}`,
    time(host.last_seen_at),
  ];
}

function showImages({ images }) {
  if (images.length) state.imagesDueAt = performance.now() + 1000 * IMAGES_PERIOD_S;
  const left = (image) => image.using_hosts - image.fully_cached_hosts;
  const rows = images.toSorted((a, b) => left(b) - left(a) || b.using_hosts - a.using_hosts);
  const titles = ["Name", "ID", "State", "Boot Image", "#Size", "#Hosts", "#In Use",
    "#Fully Cached", "#Local %", "#Boot %", "#Peer %", "#Source %"];
  const caption = images.length < MAX_IMAGES ? plural(images.length, "image")
    : `The first ${images.length} images by ID: openstack acstor image list shows all`;
  replace("images", table(caption, titles, rows.slice(0, MAX_HOSTS).map((image) => [
    nameCell(image.name ?? ""),
    html("td", {}, html("code", {}, image.image_id)),
    image.state ?? "",
    image.boot_state ?? "",
    mib(image.size_bytes),
    image.hosts,
    image.using_hosts,
    image.fully_cached_hosts,
    ...["local", "boot", "peer", "source"].map((origin) =>
      percent(image.read[origin], sum(Object.values(image.read)) || 1)),
  ])));
}

function showBoots({ boots }) {
  const caption = `The last ${plural(boots.length, "boot")} that hosts reported`;
  const titles = ["Server", "Host", "Began", "#Took s", "#Waited s"];
  replace("boots", table(caption, titles, boots.map((boot) => [
    html("td", {}, html("button", {
      class: "link", type: "button", "data-key": `${boot.server_id} ${boot.host}`,
      click: () => chooseBoot(boot.server_id, boot.host),
    }, html("code", {}, boot.server_id))),
    nameCell(boot.host),
    time(boot.began_at).slice(5, 19),
    boot.took_s.toFixed(2) + (boot.is_over ? "" : ", goes on"),
    boot.waited_s.toFixed(2),
  ])));
}

// Chunk traffic between hosts

function showFlows({ hosts, flows }) {
  if (!flows.length) {
    const nothing = "No host gave chunks to another one in the last collection.";
    replace("picture", paragraph(nothing));
    replace("flows");
    return;
  }
  const names = hosts.toSorted();
  if (flows.some((flow) => !flow.sender || !flow.receiver)) names.push("");
  const total = mib(sum(flows.map((flow) => flow.bytes)));
  const words = `${hosts.length} hosts exchanged ${total}; the table below has the numbers`;
  replace("picture", flowPicture(names, flows, words), paragraph(words));
  const shown = flows.slice(0, MAX_FLOW_ROWS);
  replace("flows", table(`The ${shown.length} largest of ${flows.length}`,
    ["Giver", "Receiver", "#Bytes"], shown.map((flow) =>
      [nameCell(hostName(flow.sender)), nameCell(hostName(flow.receiver)), mib(flow.bytes)])));
}

const hostName = (name) => name || "all other hosts";

function flowPicture(names, flows, words) {
  const isCrowded = names.length > 10;
  const middle = { x: 300, y: isCrowded ? 285 : 200 };
  const radius = isCrowded ? 140 : 150;
  const places = new Map(names.map((name, at) => {
    const angle = (2 * Math.PI * at) / names.length - Math.PI / 2;
    const colour = name ? `hsl(${Math.round((360 * at) / names.length)} 50% 52%)` : "gray";
    const [dx, dy] = [Math.cos(angle), Math.sin(angle)];
    return [name, { x: middle.x + radius * dx, y: middle.y + radius * dy, dx, dy, angle, colour }];
  }));
  const most = Math.max(...flows.map((flow) => flow.bytes));
  const bands = flows.toReversed().map((flow) => {
    const [from, to] = [places.get(flow.sender), places.get(flow.receiver)];
    const label = `${hostName(flow.sender)} sent ${hostName(flow.receiver)} ${mib(flow.bytes)}`;
    const width = Math.max(1.5, (22 * flow.bytes) / most);
    return svg("path", { class: "flow", fill: from.colour, d: band(from, to, middle, width) },
      svg("title", {}, label));
  });
  const marks = names.map((name) => hostMark(name, places.get(name), isCrowded));
  const box = `0 0 600 ${2 * middle.y}`;
  return svg("svg", { viewBox: box, role: "img", "aria-label": words }, bands, marks);
}

/** Return the outline of a curve from a sender, where it is wide, to a receiver. */
function band(from, to, middle, width) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const side = { x: (from.y - to.y) / length, y: (to.x - from.x) / length };
  const bend = (axis) =>
    0.65 * middle[axis] + (0.35 * (from[axis] + to[axis])) / 2 + 18 * side[axis];
  const point = (x, y, offset) =>
    `${(x + offset * side.x).toFixed(1)} ${(y + offset * side.y).toFixed(1)}`;
  const [x, y] = [bend("x"), bend("y")];
  return `M${point(from.x, from.y, width / 2)}`
    + `Q${point(x, y, width / 3)} ${point(to.x, to.y, 0.7)}`
    + `L${point(to.x, to.y, -0.7)}`
    + `Q${point(x, y, -width / 3)} ${point(from.x, from.y, -width / 2)}Z`;
}

function hostMark(name, place, isCrowded) {
  const whole = hostName(name);
  const short = whole.length > 18 ? `${whole.slice(0, 17)}…` : whole;
  const isLeft = place.dx < -0.01;
  const isUpright = !isCrowded && Math.abs(place.dx) < 0.3;
  const anchor = isUpright ? "middle" : isLeft ? "end" : "start";
  const [x, y] = [place.x + 13 * place.dx, place.y + 13 * place.dy];
  const degrees = (place.angle * 180) / Math.PI + (isLeft ? 180 : 0);
  const turn = isCrowded ? { transform: `rotate(${degrees.toFixed(1)} ${x} ${y})` } : {};
  const baseline = isUpright ? (place.dy < 0 ? "auto" : "hanging") : "central";
  return svg("g", {}, svg("title", {}, whole),
    svg("circle", { cx: place.x, cy: place.y, r: 6, fill: place.colour }),
    svg("text", { x, y, "text-anchor": anchor, "dominant-baseline": baseline, ...turn }, short));
}

// The timeline of a boot, as in acstor_common.service.boot_chart

function showTimeline({ server_id: server, boots }) {
  const wanted = state.boot.host;
  const boot = boots.findLast((candidate) => !wanted || candidate.host === wanted);
  state.isBootOver = Boolean(boot?.timeline.is_over);
  byId("timeline").hidden = false;
  if (!boot) {
    replace("timeline-body", paragraph(`No host has reported a boot of server ${server}: agents `
      + "report a boot every 30 s and at its end, and the service keeps the report for a week."));
    return;
  }
  const timeline = boot.timeline;
  const goesOn = timeline.is_over ? "" : " (goes on)";
  const began = time(new Date(1000 * timeline.began_at_s).toISOString());
  const image = timeline.boot_image || "unknown";
  replace("timeline-body",
    html("p", {}, `Boot of server ${server}${goesOn} on host ${boot.host} from ${began}`),
    paragraph(`Image ${timeline.image_id}, boot image: ${image}. The time of Nova before it `
      + "is in openstack acstor server timeline."),
    lanes(timeline), legend(),
    html("div", { class: "columns" },
      html("div", { class: "scroll" }, timeTable(timeline)),
      html("div", { class: "scroll" }, bytesTable(timeline))),
    html("details", {}, html("summary", {}, "Longest reads"),
      html("div", { class: "scroll" }, longestTable(timeline))));
}

function coveredSeconds(spans) {
  let [covered, until] = [0, 0];
  for (const span of spans.toSorted((a, b) => a.from_s - b.from_s)) {
    covered += Math.max(0, span.to_s - Math.max(span.from_s, until));
    until = Math.max(until, span.to_s);
  }
  return covered;
}

function timeTable(timeline) {
  const attach = timeline.spans.filter((span) => span.what === "attach");
  const ready = Math.min(coveredSeconds(attach), timeline.opened_s);
  const waits = entries(timeline.waited_s).toSorted((a, b) => b[1] - a[1]);
  const running = Math.max(0, timeline.last_s - timeline.opened_s);
  const waited = sum(Object.values(timeline.waited_s));
  const shares = [
    ["agent: until the image was ready for Nova", ready],
    ["Nova and QEMU: until the guest opened its disk", timeline.opened_s - ready],
    ...waits.map(([what, seconds]) => [`guest waits: ${WAITS[what] ?? what}`, seconds]),
    ["guest: by itself", Math.max(0, running - waited)],
  ];
  const whole = sum(shares.map(([, seconds]) => seconds));
  const rows = shares.map(([what, s]) => [what, s.toFixed(2), percent(s, whole)]);
  rows.push(["until the last read", whole.toFixed(2), ""]);
  return table("Where the time went", ["What", "#s", "#%"], rows);
}

function bytesTable(timeline) {
  const counts = entries(timeline.bytes).toSorted((a, b) => b[1] - a[1]);
  const whole = sum(counts.map(([via, count]) => (via === "zero" ? 0 : count)));
  const rows = counts.map(([via, count]) =>
    [WAITS[via] ?? via, (count / MIB).toFixed(1), via === "zero" ? "" : percent(count, whole)]);
  return table(`What ${timeline.reads} reads got`, ["From", "#MiB", "#%"], rows);
}

function longestTable(timeline) {
  return table(`The ${timeline.longest.length} longest reads`, ["#At s", "#Took s", "#Byte", "#KiB", "From"],
    timeline.longest.map((read) => [
      read.at_s.toFixed(2), read.took_s.toFixed(3), read.offset, (read.length / 1024).toFixed(0),
      html("td", { class: "text" }, (Object.keys(read.bytes).join(", ") || "nowhere")
        + (read.why ? ` (${read.why})` : "")),
    ]));
}

function lanes(timeline) {
  const ends = timeline.spans.map((span) => span.to_s);
  const end = Math.max(0.001, timeline.last_s, timeline.opened_s, ...ends);
  const x = (seconds) => 180 + (800 * Math.min(Math.max(0, seconds), end)) / end;
  const bar = (y, kind, from, to, more = {}) =>
    svg("rect", { class: kind, x: x(from), y, height: 12, width: Math.max(1, x(to) - x(from)), ...more });
  const rows = timeline.spans.map((span) =>
    [`agent: ${span.what}`, (y) => bar(y, "span", span.from_s, span.to_s), 18]);
  const { opened_s: opened } = timeline;
  rows.push(["guest: disk is open",
    (y) => bar(y, "cache", opened, Math.max(opened, timeline.last_s)), 18]);
  rows.push(["guest: waits", (y) => slices(timeline, (part, from, to) =>
    bar(y, "wait", from, to, { opacity: Math.min(1, part.waited_s / timeline.slice_s) })), 18]);
  rows.push(["guest: bytes are from", (y) => byteBars(timeline, x, y), 60]);
  const parts = [];
  let y = 22;
  for (const [label, draw, height] of rows) {
    parts.push(svg("rect", { class: "track", x: 180, y, width: 800, height: height - 6 }));
    parts.push(svg("text", { x: 172, y: y + 10, "text-anchor": "end" }, label), draw(y));
    y += height;
  }
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => svg("g", {},
    svg("line", { class: "axis", x1: 180 + 800 * share, x2: 180 + 800 * share, y1: 16, y2: y }),
    svg("text", { class: "dim", x: 180 + 800 * share, y: 12, "text-anchor": "middle" },
      `${(share * end).toFixed(1)} s`)));
  const label = "Timeline of the boot; the tables below have its numbers";
  return svg("svg", { viewBox: `0 0 1010 ${y}`, role: "img", "aria-label": label },
    ticks, parts.flat(2));
}

function slices(timeline, draw) {
  return timeline.slices.map((part, at) => {
    const from = timeline.opened_s + at * timeline.slice_s;
    return draw(part, from, from + timeline.slice_s);
  });
}

/** Return a stacked bar for each slice: the bytes by their origin, without zeros. */
function byteBars(timeline, x, top) {
  const count = (part) => sum(VIAS.map((via) => part.bytes[via] ?? 0));
  const most = Math.max(1, ...timeline.slices.map(count));
  return slices(timeline, (part, from, to) => {
    let y = top + 54;
    return VIAS.filter((via) => part.bytes[via]).map((via) => {
      const height = (54 * part.bytes[via]) / most;
      y -= height;
      const label = `${WAITS[via]}: ${mib(part.bytes[via])}`;
      const place = { x: x(from), y, height, width: Math.max(1, x(to) - x(from) - 0.6) };
      return svg("rect", { class: via, ...place }, svg("title", {}, label));
    });
  });
}

function legend() {
  const square = (kind) => svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" },
    svg("rect", { class: kind, width: 10, height: 10 }));
  const known = [...VIAS.map((via) => [via, WAITS[via]]), ["wait", "a read waits"]];
  return html("ul", { class: "legend" },
    known.map(([kind, words]) => html("li", {}, square(kind), words)));
}

// Requests

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path) {
  const headers = { "OpenStack-API-Version": "acstor 1.0" };
  if (state.token) headers["X-Auth-Token"] = state.token;
  const signal = AbortSignal.timeout(1000 * TIMEOUT_S);
  try {
    const answer = await fetch(path, { headers, signal, redirect: "manual", cache: "no-store" });
    return [answer, await answer.text()];
  } catch (error) {
    throw new ApiError(0, `The REST API does not answer: ${error.message}`);
  }
}

async function get(path) {
  const session = state.session;
  const [answer, body] = await send(path);
  if (session !== state.session) throw new Error("this session is over");
  if (answer.type === "opaqueredirect") {
    throw new ApiError(401, "The proxy in front of the API asks you to sign in: reload this page.");
  }
  if (answer.ok) return JSON.parse(body);
  throw new ApiError(answer.status, reason(answer, body));
}

function reason(answer, body) {
  if (answer.status === 401) {
    return state.token ? "Keystone does not accept the token: it has expired or is wrong." : "";
  }
  let message = `the answer is ${answer.status} ${answer.statusText}`;
  try {
    message = JSON.parse(body).error.message;
  } catch { /* the answer is that of a proxy */ }
  const words = { 400: "Refused", 403: "The role is missing", 503: "Not available" };
  return `${words[answer.status] ?? "The API failed"}: ${message} (HTTP ${answer.status})`;
}

/** Load one section; the API may refuse one and answer for others. */
async function load(id, path, show) {
  let data;
  try {
    data = await get(path);
  } catch (error) {
    if (![400, 403, 404].includes(error.status)) throw error;
    replace(id, paragraph(error.message));
    return;
  }
  show(data);
}

async function loadAll() {
  const counts = showStatus(await get("v1/status"));
  byId("sign-in").hidden = true;
  for (const id of ["data", "pause"]) byId(id).hidden = false;
  byId("sign-out").hidden = !state.token;
  await load("picture", `v1/traffic/peers?limit=${MAX_FLOW_HOSTS}`, showFlows);
  await load("boots", `v1/boots?limit=${MAX_BOOTS}`, showBoots);
  const order = encodeURIComponent(byId("order").value);
  await load("hosts", `v1/hosts?sort=${order}&limit=${MAX_HOSTS}`, (data) => showHosts(data, counts));
  if (state.boot && !state.isBootOver) {
    const server = encodeURIComponent(state.boot.server);
    await load("timeline-body", `v1/servers/${server}/boots`, showTimeline);
  }
  if (performance.now() >= state.imagesDueAt) {
    await load("images", `v1/images?limit=${MAX_IMAGES}`, showImages);
  }
}

// Polling

async function update(isAsked = false) {
  if (state.isRunning) {
    state.isWanted ||= isAsked;
    return;
  }
  if ((state.isPaused && !isAsked) || document.hidden) return;
  Object.assign(state, { isRunning: true, isWanted: false });
  const { session } = state;
  const began = performance.now();
  let wait_s = Infinity;
  try {
    await loadAll();
    state.failures = 0;
    report("");
    wait_s = Math.max(PERIOD_S, (BUSY_FACTOR * (performance.now() - began)) / 1000);
  } catch (error) {
    if (session === state.session) wait_s = fail(error);
  }
  state.isRunning = false;
  if (state.isWanted) update(true);
  else schedule(wait_s);
}

/** Report an error; return the time until the next attempt. */
function fail(error) {
  if (error.status === 401 || error.status === 403) {
    signOut(error.message);
    return Infinity;
  }
  state.failures += 1;
  const wait_s = Math.min(MAX_BACKOFF_S, PERIOD_S * 2 ** (state.failures - 1));
  report(`${error.message}. The next attempt is in ${wait_s} s.`);
  return wait_s;
}

function schedule(wait_s) {
  clearTimeout(state.timer);
  state.dueAt = performance.now() + 1000 * wait_s;
  if (Number.isFinite(wait_s)) state.timer = setTimeout(() => update(), 1000 * wait_s);
}

function report(message) {
  const shown = printable(message);
  if (byId("notice").textContent !== shown) byId("notice").textContent = shown;
  byId("data").classList.toggle("stale", Boolean(shown));
}

function resume() {
  if (document.hidden || !byId("sign-in").hidden) return;
  schedule(Math.max(0, (state.dueAt - performance.now()) / 1000));
}

// The operator

function signOut(message) {
  state.token = "";
  state.session += 1;
  clearTimeout(state.timer);
  for (const id of ["data", "pause", "sign-out", "health", "timeline"]) byId(id).hidden = true;
  for (const id of ["overview", "findings", "picture", "flows", "boots", "hosts", "images",
    "timeline-body", "updated", "health"]) replace(id);
  Object.assign(state, { boot: null, isBootOver: false, imagesDueAt: 0, failures: 0 });
  byId("sign-in").hidden = false;
  byId("token").focus();
  report(message);
}

function signIn(event) {
  event.preventDefault();
  const token = byId("token").value.trim();
  byId("token").value = "";
  if (!/^[\x21-\x7e]{1,8192}$/.test(token)) {
    report("This is not a token: it has spaces or characters beyond ASCII.");
    return;
  }
  state.token = token;
  state.session += 1;
  report("");
  update(true);
}

function chooseBoot(server, host = "") {
  state.boot = { server, host };
  state.isBootOver = false;
  byId("timeline").hidden = false;
  replace("timeline-body", paragraph("Loading"));
  byId("timeline-title").focus();
  update(true);
}

function setPaused() {
  state.isPaused = !state.isPaused;
  byId("pause").setAttribute("aria-pressed", state.isPaused);
  if (!state.isPaused) update();
}

byId("sign-in").addEventListener("submit", signIn);
byId("sign-out").addEventListener("click", () => signOut(""));
byId("pause").addEventListener("click", setPaused);
byId("order").addEventListener("change", () => update(true));
byId("find-boot").addEventListener("submit", (event) => {
  event.preventDefault();
  chooseBoot(byId("server").value.trim().toLowerCase());
});
document.addEventListener("visibilitychange", resume);
update();
