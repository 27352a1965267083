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
  const { data, parentElement } = component;
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
  if (!figure || !root.isConnected) return;
  root.waiting = null;
  window.Plotly.react(root, figure.data, figure.layout, figure.config).then(() => (root.isDrawn = true));
}
