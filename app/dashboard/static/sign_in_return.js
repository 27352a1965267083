// The framework ends a sign-in at its first page; this leads on to the address that was asked for before it.
// Whole addresses are kept: a path that begins with two slashes alone would name another host.

const KEY = "malleus-asked-for";

export default function ({ data }) {
  const isFirstPage = location.pathname + location.search === new URL(".", document.baseURI).pathname;
  if (!data.is_let_in) {
    if (!isFirstPage) sessionStorage.setItem(KEY, location.href);
    return undefined;
  }
  const before = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  if (before && isFirstPage) location.replace(before);
  return undefined;
}
