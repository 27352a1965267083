// The framework ends a sign-in at its first page; this leads on to the address that was asked for before it.

const KEY = "malleus-asked-for";

export default function ({ data }) {
  const asked = location.pathname + location.search;
  const isFirstPage = asked === new URL(".", document.baseURI).pathname;
  if (!data.is_let_in) {
    if (!isFirstPage) sessionStorage.setItem(KEY, asked);
    return undefined;
  }
  const before = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  if (before && isFirstPage) location.replace(before);
  return undefined;
}
