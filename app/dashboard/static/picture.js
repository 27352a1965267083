// A drawing that the server writes as HTML and the browser patches in place.
//
// The server sends {html, selected, stamp}. This module changes only what differs (hover, focus and
// scroll survive a refresh), shows tooltips of [data-tip], lets ages of [data-age] grow between two
// refreshes (so a page whose server has died does not look alive), reports links of [data-go] and
// selections of [data-pick]. It decides nothing.

const TICK_MS = 250;
const TRUST_CLICK_MS = 2000; // after a click the browser's selection wins until the server has had time

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  let root = parentElement.querySelector(".picture");
  if (!root) {
    const frame = document.createElement("div");
    frame.className = "malleus"; // the scope of picture.css
    root = document.createElement("div");
    root.className = "picture";
    frame.appendChild(root);
    parentElement.appendChild(frame);
    listen(root);
  }
  root.send = setTriggerValue;
  root.mode = data.mode;
  if (root.stamp !== data.stamp) {
    root.stamp = data.stamp;
    root.receivedAt = Date.now();
  }
  const next = document.createElement("div");
  next.innerHTML = data.html;
  if (!root.clickedAt || Date.now() - root.clickedAt > TRUST_CLICK_MS || sameSet(root.selected, data.selected)) {
    root.selected = new Set((data.selected || []).map(String));
    root.clickedAt = 0;
  }
  mark(next, root.selected);
  patch(root, next);
  tick(root);
  if (!root.timer) root.timer = setInterval(() => tick(root), TICK_MS);
  return () => {
    clearInterval(root.timer);
    root.timer = null;
    if (root.querySelector("[data-stale-after]")) document.documentElement.removeAttribute("data-malleus-stale");
  };
}

function listen(root) {
  root.addEventListener("click", (event) => {
    const link = event.target.closest("[data-go]");
    if (link && !event.metaKey && !event.ctrlKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      root.send("go", link.dataset.go);
      return;
    }
    const cell = event.target.closest("[data-pick]");
    if (cell && root.mode) pick(root, cell.dataset.pick);
  });
  root.addEventListener("pointerover", (event) => showTip(root, event.target.closest("[data-tip]")));
  root.addEventListener("pointerleave", () => showTip(root, null));
  root.addEventListener("focusin", (event) => {
    if (event.target.matches(":focus-visible")) showTip(root, event.target.closest("[data-tip]"));
  });
  root.addEventListener("focusout", () => showTip(root, null));
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") showTip(root, null);
  });
}

function pick(root, value) {
  const selected = new Set(root.selected);
  if (selected.has(value)) selected.delete(value);
  else {
    if (root.mode === "one") selected.clear();
    selected.add(value);
  }
  root.selected = selected;
  root.clickedAt = Date.now();
  mark(root, selected);
  root.send("pick", [...selected]);
}

function mark(tree, selected) {
  for (const cell of tree.querySelectorAll("[data-pick]")) {
    const isPicked = selected.has(cell.dataset.pick);
    cell.toggleAttribute("data-picked", isPicked);
    if (cell.tagName === "BUTTON") cell.setAttribute("aria-pressed", String(isPicked));
  }
}

function sameSet(selected, values) {
  const other = (values || []).map(String);
  return selected && selected.size === other.length && other.every((value) => selected.has(value));
}

function patch(from, to) {
  const old = [...from.childNodes];
  const wanted = [...to.childNodes];
  wanted.forEach((node, index) => {
    const here = old[index];
    if (!here) from.appendChild(node);
    else if (here.nodeType !== node.nodeType || here.nodeName !== node.nodeName) here.replaceWith(node);
    else if (here.nodeType === Node.TEXT_NODE) {
      if (here.data !== node.data) here.data = node.data;
    } else if (here.nodeType === Node.ELEMENT_NODE && !here.isEqualNode(node)) {
      for (const { name } of [...here.attributes]) { // details of [data-key] that a person unfolded stay so
        const isOpened = name === "open" && here.dataset.key && here.dataset.key === node.dataset.key;
        if (!node.hasAttribute(name) && !isOpened) here.removeAttribute(name);
      }
      for (const { name, value } of [...node.attributes]) {
        if (here.getAttribute(name) !== value) here.setAttribute(name, value);
      }
      patch(here, node);
    }
  });
  for (const extra of old.slice(wanted.length)) if (!extra.isTip) extra.remove();
}

function showTip(root, owner) {
  if (root.tipOwner === owner) return;
  root.tipOwner = owner;
  if (!root.tip) {
    root.tip = document.createElement("div");
    root.tip.className = "tip";
    root.tip.setAttribute("role", "tooltip");
    root.tip.popover = "manual";
    root.tip.isTip = true;
    root.parentNode.appendChild(root.tip);
  }
  if (!owner) {
    root.tip.hidePopover();
    return;
  }
  root.tip.textContent = owner.dataset.tip;
  root.tip.showPopover();
  const box = owner.getBoundingClientRect();
  const tip = root.tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.width / 2), innerWidth - tip.width - 8);
  const isAbove = box.bottom + tip.height + 10 > innerHeight;
  root.tip.style.left = `${left}px`;
  root.tip.style.top = `${isAbove ? box.top - tip.height - 6 : box.bottom + 6}px`;
}

function tick(root) {
  const waited = (Date.now() - root.receivedAt) / 1000;
  for (const element of root.querySelectorAll("[data-age]")) {
    const age = Number(element.dataset.age) + waited;
    const text = formatAge(age);
    if (element.textContent !== text) element.textContent = text;
    if (!element.dataset.staleAfter) continue;
    const isStale = age > Number(element.dataset.staleAfter);
    element.closest("[data-freshness]").dataset.freshness = isStale ? "stale" : "fresh";
    document.documentElement.toggleAttribute("data-malleus-stale", isStale);
  }
  if (root.tipOwner && !root.tipOwner.isConnected) showTip(root, null);
}

// Same wording as quantities.age in Python.
function formatAge(value) {
  const thin = "\u202f";
  const age = Math.max(value, 0);
  if (age < 9.95) return `${age.toFixed(1)}${thin}s`;
  const whole = Math.round(age);
  if (whole < 60) return `${whole}${thin}s`;
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  for (let index = 0; index < 3; index += 1) {
    const [unit, size] = units[index];
    if (whole < size) continue;
    const [lower, lowerSize] = units[index + 1];
    const rest = Math.floor((whole % size) / lowerSize);
    return `${Math.floor(whole / size)}${thin}${unit}` + (rest ? ` ${rest}${thin}${lower}` : "");
  }
  return "";
}
