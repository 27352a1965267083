// Tells the server whether anybody can see this tab, so that live parts rest while nobody does. It comes before
// everything else on the page, so it also has the plot library fetched while the page is drawn.

export default function ({ data, parentElement, setStateValue }) {
  if (parentElement.dataset.reports) return undefined;
  fetchEarly(data.preload);
  parentElement.dataset.reports = "visibility";
  const report = () => setStateValue("hidden", document.hidden);
  document.addEventListener("visibilitychange", report);
  return () => document.removeEventListener("visibilitychange", report);
}

function fetchEarly(address) {
  const link = document.createElement("link");
  link.rel = "preload";
  link.as = "script";
  link.href = new URL(address, document.baseURI).href;
  document.head.appendChild(link);
}
