// A Plotly figure that is updated in place. Plotly is loaded once a page, from the dashboard's server.

let loading;

function library(url) {
  loading ??= new Promise((resolve, reject) => {
    if (window.Plotly) {
      resolve(window.Plotly);
      return;
    }
    const script = document.createElement("script");
    script.src = new URL(url, document.baseURI).href;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the plot library did not load"));
    document.head.appendChild(script);
  });
  return loading;
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  let root = parentElement.querySelector(".plot");
  if (!root) {
    root = document.createElement("div");
    root.className = "plot";
    root.setAttribute("role", "img");
    parentElement.appendChild(root);
    root.addEventListener("pointerdown", () => (root.isHeld = true), true);
    root.release = () => {
      root.isHeld = false;
      if (root.waiting) requestAnimationFrame(() => draw(root));
    };
    window.addEventListener("pointerup", root.release);
    root.observer = new ResizeObserver(() => root.isDrawn && root.offsetParent && window.Plotly.Plots.resize(root));
    root.observer.observe(root);
  }
  root.send = setTriggerValue;
  root.setAttribute("aria-label", data.alt);
  root.style.height = `${data.figure.layout.height}px`; // the page does not move when the plot arrives
  const text = JSON.stringify(data.figure);
  if (text !== root.text) {
    root.text = text;
    root.waiting = data.figure;
    library(data.script).then(
      () => root.isHeld || draw(root), // a drag in progress is not disturbed
      (error) => (root.textContent = `No chart: ${error.message}.`),
    );
  }
  return () => {
    window.removeEventListener("pointerup", root.release);
    root.observer.disconnect();
    if (root.isDrawn) window.Plotly.purge(root);
    root.isDrawn = false;
  };
}

function draw(root) {
  const figure = root.waiting;
  if (!figure || !root.isConnected || !window.Plotly) return; // who loads the library draws when it has come
  root.waiting = null;
  window.Plotly.react(root, figure.data, figure.layout, figure.config).then(() => {
    if (!root.isDrawn) root.on("plotly_click", (event) => clicked(root, event.points));
    root.isDrawn = true;
  });
}

// A trace says by its `meta` what a click on it does; a heatmap keeps its customdata by row and column.
function clicked(root, points) {
  for (const point of points) {
    const { meta, customdata } = point.data;
    if (meta === "pick") root.send("pick", String(point.y));
    if (meta === "go") root.send("go", customdata[point.pointNumber[0]][point.pointNumber[1]]);
  }
}
