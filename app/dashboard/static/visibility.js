// Tells the server whether anybody can see this tab, so that live parts rest while nobody does.

export default function ({ parentElement, setStateValue }) {
  if (parentElement.dataset.reports) return undefined;
  parentElement.dataset.reports = "visibility";
  const report = () => setStateValue("hidden", document.hidden);
  document.addEventListener("visibilitychange", report);
  return () => document.removeEventListener("visibilitychange", report);
}
