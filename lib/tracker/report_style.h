// SPDX-License-Identifier: MIT
// Style and script of a report: within the page, which loads nothing.
#pragma once

namespace dalle2 {

inline constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #1c2330; --soft: #667085;
  --edge: #e3e6eb; --bad: #b42318; --c0: #2f6fde; --c1: #e07b00; --c2: #12915f; --c3: #d0392b;
  --c4: #7a4fd6; --c5: #0d8b96; --c6: #c9378b; --c7: #6f7d1b; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161d; --card: #1b212b; --text: #e4e8ef;
  --soft: #98a2b3; --edge: #2c3440; --bad: #ff8a7a; --c0: #6ea3ff; --c1: #ffae4d; --c2: #4fd09a;
  --c3: #ff7d6e; --c4: #b294ff; --c5: #4fd0db; --c6: #ff85c5; --c7: #c3d154; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 48px; max-width: 1320px; background: var(--ground);
  color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.6rem; overflow-wrap: anywhere; }
h2 { margin: 36px 0 12px; font-size: 1.15rem; }
h3 { margin: 20px 0 8px; font-size: 1rem; }
small, .sub, footer { color: var(--soft); font-weight: normal; font-size: .82rem; }
footer { margin-top: 40px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0 0; }
.tiles div, .chart, .card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; }
.tiles div { padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: .78rem; }
.tiles dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 14px; }
.chart { margin: 0; padding: 12px 14px 6px; position: relative; min-width: 0; }
.chart figcaption { display: flex; flex-wrap: wrap; gap: 2px 10px; align-items: baseline; }
.chart svg { display: block; width: 100%; height: auto; margin-top: 6px; }
.keys { margin-left: auto; display: flex; flex-wrap: wrap; gap: 0 12px; font-size: .8rem; }
.key { white-space: nowrap; font-variant-numeric: tabular-nums; }
.key::before { content: ""; display: inline-block; width: 10px; height: 10px; margin-right: 5px;
  border-radius: 3px; background: var(--c); }
svg text { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
svg text.y { text-anchor: end; }
svg text.x { text-anchor: middle; }
svg .grid { stroke: var(--edge); }
svg .line, svg .faint { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
svg .faint { stroke-width: 1; opacity: .28; }
svg .area, svg .dot { fill: var(--c); }
svg .area { stroke: var(--card); stroke-width: .8; }
svg .cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.tip { position: absolute; z-index: 2; padding: 6px 10px; background: var(--card); border: 1px solid var(--edge);
  border-radius: 8px; box-shadow: 0 4px 14px #0003; font-size: .78rem; pointer-events: none; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--edge); border-radius: 10px; }
table { border-collapse: collapse; font-size: .84rem; }
th, td { padding: 5px 10px; text-align: left; vertical-align: middle; }
th { font-weight: 600; }
tbody tr + tr > * { border-top: 1px solid var(--edge); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.pictures th[scope=col], .pictures th.real { color: var(--soft); font-weight: normal; text-align: center;
  white-space: nowrap; }
.pictures td { padding: 4px 6px; text-align: center; }
.pictures th[scope=row] { position: sticky; left: 0; background: var(--card); min-width: 130px; max-width: 220px;
  font-weight: normal; overflow-wrap: anywhere; }
.pictures .real { border-right: 1px solid var(--edge); }
.pictures img { display: block; height: 96px; width: auto; margin: auto; border-radius: 5px; cursor: zoom-in; }
.pictures img.pixels, dialog img { image-rendering: pixelated; }
.absent { color: var(--soft); max-width: 110px; font-size: .72rem; overflow-wrap: anywhere; }
.bad { color: var(--bad); }
details { padding: 10px 14px; }
summary { cursor: pointer; font-weight: 600; }
details table { margin: 10px 0 4px; width: 100%; }
details td:first-child { color: var(--soft); white-space: nowrap; width: 1%; }
td code, pre { font: .8rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere;
  white-space: pre-wrap; margin: 0; }
dialog { border: 0; padding: 0; background: none; }
dialog::backdrop { background: #000b; }
dialog img { display: block; height: min(80vh, 768px); width: auto; max-width: 92vw; cursor: zoom-out; }
)css";

inline constexpr const char* kReportScript = R"js(
"use strict";
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const series = JSON.parse(svg.dataset.points).filter(one => one.points.length);
  const tip = svg.nextElementSibling;
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", 10);
  cursor.setAttribute("y2", svg.viewBox.baseVal.height - 26);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const nearest = series.map(one => one.points.reduce(
      (best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
    const at = nearest.reduce((best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best);
    cursor.setAttribute("x1", at[0]);
    cursor.setAttribute("x2", at[0]);
    svg.append(cursor);
    tip.replaceChildren();
    const lines = [["step", at[2].toLocaleString("en")], ...nearest.map((point, i) => [series[i].name, point[3]])];
    for (const [name, value] of lines) {
      const line = document.createElement("div");
      line.textContent = name + "  " + value;
      tip.append(line);
    }
    tip.hidden = false;
    const left = svg.offsetLeft + at[0] / svg.viewBox.baseVal.width * box.width;
    const right = at[0] > svg.viewBox.baseVal.width / 2;
    tip.style.left = (right ? left - tip.offsetWidth - 12 : left + 12) + "px";
    tip.style.top = svg.offsetTop + 12 + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.remove(); });
}
const dialog = document.querySelector("dialog");
dialog.addEventListener("click", () => dialog.close());
for (const image of document.querySelectorAll(".pictures img")) {
  image.title = image.alt;
  image.addEventListener("click", () => { dialog.firstElementChild.src = image.src; dialog.showModal(); });
}
)js";

}  // namespace dalle2
