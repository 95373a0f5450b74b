"use strict";
// The charts of a report. The page holds the data of each: {log, series: [{name, last, steps, values, means?}]}.
// Text goes into the page by textContent alone: names and captions may be anybody's.
const WIDTH = 600, HEIGHT = 240, LEFT = 52, RIGHT = 588, TOP = 10, BOTTOM = 214;  // in units of the drawing
const EDGE = 4, LEAST_DRAG = 8, COLOURS = 8;

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, className, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

const short = value => String(Number(value.toPrecision(4)));
const numberText = value => Math.abs(value) >= 1000 && Math.abs(value) < 1e15
  ? Math.round(value).toLocaleString("en") : short(value);
const axisText = value => {
  for (const [unit, name, from] of [[1e9, "G", 1e9], [1e6, "M", 1e6], [1e3, "k", 1e4]])
    if (Math.abs(value) >= from) return short(value / unit) + name;
  return short(value);
};

/** 1, 2 or 5 times a power of ten, about `count` of them between low and high; of a logarithmic axis the powers. */
function ticks(low, high, count, log) {
  const found = [];
  if (log && high / low > 5) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power)
      for (const factor of high / low < 1000 ? [1, 2, 5] : [1]) found.push(factor * 10 ** power);
  } else {
    const power = 10 ** Math.floor(Math.log10((high - low) / count));
    const step = power * ([1, 2, 5].find(factor => power * factor * count >= high - low) ?? 10);
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) found.push(i * step);
  }
  return found.filter(tick => tick >= low && tick <= high);
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : value => value;
  return value => from + (f(value) - f(low)) / (f(high) - f(low)) * (to - from);
}

class Chart {
  constructor(figure) {
    Object.assign(this, JSON.parse(figure.querySelector("script").textContent));
    const caption = figure.querySelector("figcaption"), title = caption.querySelector("b").textContent;
    this.shown = this.series.map(() => true);
    this.reset = html("button", "reset", "whole");
    this.reset.addEventListener("click", () => this.zoom(...this.whole));
    const keys = this.series.map((one, i) => {
      const key = html("button", `key c${i % COLOURS}`, one.name, html("b", "", one.last));
      key.addEventListener("click", () => {
        this.shown[i] = !this.shown[i];
        key.setAttribute("aria-pressed", this.shown[i]);
        this.draw();
      });
      return key;
    });
    caption.append(this.reset, html("span", "keys", ...keys));
    this.area = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title});
    this.tip = html("div", "tip");
    this.tip.hidden = true;
    figure.append(this.area, this.tip);
    const steps = this.series.flatMap(one => [one.steps[0], one.steps.at(-1)]);
    this.whole = [Math.min(...steps), Math.max(...steps)];
    if (this.whole[0] === this.whole[1]) this.whole[1] += 1;
    this.listen();
    this.zoom(...this.whole);
  }

  zoom(first, last) {
    if (last - first < 1 && this.whole[1] - this.whole[0] >= 1) return;  // steps are whole numbers
    [this.first, this.last] = [first, last];
    this.reset.hidden = first === this.whole[0] && last === this.whole[1];
    this.draw();
  }

  /** What is drawn of each shown series: the indices in sight and one beside them. */
  visible() {
    return this.series.flatMap((one, i) => {
      if (!this.shown[i]) return [];
      const begin = one.steps.findIndex(step => step >= this.first);  // none: it ended before
      const from = begin < 0 ? one.steps.length : Math.max(0, begin - 1);
      const after = one.steps.findIndex(step => step > this.last);
      const indices = one.steps.slice(from, after < 0 ? undefined : after + 1).map((_, k) => from + k);
      return [{i, one, indices, inside: indices.filter(k => one.steps[k] >= this.first && one.steps[k] <= this.last)}];
    });
  }

  range(parts) {
    let low = Infinity, high = -Infinity;
    for (const {one: {values}, indices, inside} of parts)
      for (const k of inside.length ? inside : indices) [low, high] = [Math.min(low, values[k]), Math.max(high, values[k])];
    if (low > high) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - Math.abs(low) * 0.1 - 1e-9, high + Math.abs(high) * 0.1 + 1e-9];
    const margin = this.log ? 0 : 0.05 * (high - low);
    return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];  // no room below zero for what is positive
  }

  draw() {
    const parts = this.visible(), [low, high] = this.range(parts), log = this.log && low > 0;
    this.x = scale(this.first, this.last, LEFT, RIGHT, false);
    this.y = scale(low, high, BOTTOM, TOP, log);
    const plot = svg("svg", {x: LEFT - EDGE, width: RIGHT - LEFT + 2 * EDGE, height: HEIGHT,
      viewBox: `${LEFT - EDGE} 0 ${RIGHT - LEFT + 2 * EDGE} ${HEIGHT}`});  // cuts off what a zoom leaves outside
    this.area.replaceChildren(
      ...ticks(low, high, 4, log).flatMap(tick => [
        svg("line", {class: "grid", x1: LEFT, x2: RIGHT, y1: this.y(tick), y2: this.y(tick)}),
        svg("text", {class: "y", x: LEFT - 6, y: this.y(tick) + 4}, axisText(tick))]),
      ...ticks(this.first, this.last, 6).filter(Number.isInteger).map(
        tick => svg("text", {class: "x", x: this.x(tick), y: HEIGHT - 8}, axisText(tick))),
      plot);
    for (const part of parts) plot.append(...this.curves(part));
  }

  curves({i, one, indices}) {
    const colour = `c${i % COLOURS}`;
    const path = (list, values) => list.map(
      (k, at) => `${at ? "L" : "M"}${this.x(one.steps[k]).toFixed(1)} ${this.y(values[k]).toFixed(1)}`).join("");
    if (indices.length === 1)
      return [svg("circle", {class: `dot ${colour}`, cx: this.x(one.steps[indices[0]]), cy: this.y(one.values[indices[0]]), r: 3})];
    const line = svg("path", {class: `${one.means ? "faint" : "line"} ${colour}`, d: path(indices, one.values)});
    return one.means ? [line, svg("path", {class: `line ${colour}`, d: path(indices, one.means)})] : [line];
  }

  listen() {
    const place = event => {
      const box = this.area.getBoundingClientRect();
      return Math.min(RIGHT, Math.max(LEFT, (event.clientX - box.left) / box.width * WIDTH));
    };
    const step = x => this.first + (x - LEFT) / (RIGHT - LEFT) * (this.last - this.first);
    const cursor = svg("line", {class: "cursor", y1: TOP, y2: BOTTOM}), chosen = svg("rect", {class: "chosen", y: TOP, height: BOTTOM - TOP});
    let begin = null;
    this.area.addEventListener("pointerdown", event => { begin = place(event); event.preventDefault(); });
    this.area.addEventListener("pointermove", event => {
      const x = place(event);
      this.show(step(x), cursor);
      if (begin === null) return;
      chosen.setAttribute("x", Math.min(begin, x));
      chosen.setAttribute("width", Math.abs(x - begin));
      this.area.append(chosen);
    });
    addEventListener("pointerup", event => {
      if (begin === null) return;
      const [from, to] = [begin, place(event)].sort((a, b) => a - b);
      begin = null;
      chosen.remove();
      if (to - from >= LEAST_DRAG) this.zoom(step(from), step(to));
    });
    this.area.addEventListener("dblclick", () => this.zoom(...this.whole));
    this.area.addEventListener("pointerleave", () => { this.tip.hidden = true; cursor.remove(); });
  }

  /** The values nearest to a step, beside a line at the nearest of their steps. */
  show(step, cursor) {
    const nearer = (a, b) => Math.abs(b - step) < Math.abs(a - step);
    const found = this.visible().filter(part => part.inside.length).map(({i, one, inside}) => {
      const k = inside.reduce((best, other) => nearer(one.steps[best], one.steps[other]) ? other : best);
      return {i, name: one.name, at: one.steps[k], text: numberText(one.values[k])};
    });
    if (!found.length) return;
    const at = found.reduce((best, other) => nearer(best, other.at) ? other.at : best, found[0].at), x = this.x(at);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    this.area.append(cursor);
    this.tip.replaceChildren(html("div", "", `step  ${at.toLocaleString("en")}`),
      ...found.map(({i, name, text}) => html("div", `c${i % COLOURS}`, html("i", ""), `${name}  ${text}`)));
    this.tip.hidden = false;
    const box = this.area.getBoundingClientRect(), figure = this.area.parentElement.getBoundingClientRect();
    const left = box.left - figure.left + box.width * x / WIDTH;
    this.tip.style.left = (x > WIDTH / 2 ? left - this.tip.offsetWidth - 12 : left + 12) + "px";
    this.tip.style.top = box.top - figure.top + 12 + "px";
  }
}

for (const figure of document.querySelectorAll("figure.chart")) new Chart(figure);

const dialog = document.querySelector("dialog");
dialog.addEventListener("click", () => dialog.close());
for (const image of document.querySelectorAll(".pictures img")) {
  image.title = image.alt;
  image.addEventListener("click", () => { dialog.firstElementChild.src = image.src; dialog.showModal(); });
}
