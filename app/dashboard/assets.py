"""What the browser loads beside the framework's own files: our scripts and styles, and Plotly.

Nothing comes from another host. Two folders are served by the dashboard's own server (the framework
serves a component's folder): `static/` of this package, and the data folder of the installed
`plotly`, which carries plotly.min.js. Components are mounted with a loader of a few bytes that
imports the served module, so a refresh carries data only and the browser caches the rest.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import streamlit.components.v1 as components

STATIC = Path(__file__).parent / "static"
PLOTLY_FILE = "plotly.min.js"


def serve() -> None:
    """Registers both folders with the running server; may be called again."""
    components.declare_component("static", path=str(STATIC))
    components.declare_component("plotly", path=str(plotly_folder()))


@cache
def plotly_folder() -> Path:
    """Where the installed Plotly keeps its script (found without importing it)."""
    spec = find_spec("plotly")
    assert spec is not None, "plotly is a dependency of this package"
    folders = spec.submodule_search_locations or []
    return Path(folders[0]) / "package_data"


@cache
def static_url(name: str) -> str:
    """Address of one of our files, relative to any page; changes with its content."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"component/{__name__}.static/{name}?v={digest}"


@cache
def plotly_url() -> str:
    """Address of Plotly's script, relative to any page."""
    size = (plotly_folder() / PLOTLY_FILE).stat().st_size
    return f"component/{__name__}.plotly/{PLOTLY_FILE}?v={size}"


def loader(name: str) -> str:
    """Source of the module that a component is mounted with: it hands everything to the served one."""
    return f"""
const module = import(new URL("{static_url(name)}", document.baseURI).href);
const cleanups = new WeakMap();
export default function (component) {{
  const place = component.parentElement;
  module.then((loaded) => cleanups.set(place, loaded.default(component)));
  return () => {{
    const cleanup = cleanups.get(place);
    if (cleanup) cleanup();
  }};
}}
"""
