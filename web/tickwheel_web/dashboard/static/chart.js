// Charts over time, drawn out of the tables beneath them.
"use strict";

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5"];
const charts = [];

// The colour behind a custom property, as a canvas can use it.
function colour(name) {
  const probe = document.createElement("i");
  probe.className = "probe" + name;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function seconds(value) {
  if (value === 0) return "0";
  if (value < 1) return `${+(value * 1000).toPrecision(3)} ms`;
  return value < 60 ? `${value} s` : value < 3600 ? `${value / 60} min` : `${value / 3600} h`;
}

// Of a number of seconds: by magnitude, and 0 is where the axis begins.
const MARKS = [0, 0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 86400];
const height = (value) => (value === null ? null : Math.log10(1 + value * 1000));

function read(figure) {
  const heads = [...figure.querySelectorAll("thead th")].map((head) => head.textContent);
  const rows = [...figure.querySelectorAll("tbody tr")];
  const times = rows.map((row) => Date.parse(row.querySelector("time").dateTime) / 1000);
  const count = Math.max(0, ...rows.map((row) => row.querySelectorAll("[data-value]").length));
  const series = Array.from({ length: count }, (_, number) =>
    rows.map((row) => {
      const cell = row.querySelectorAll("[data-value]")[number];
      return cell ? Number(cell.dataset.value) : null;
    }));
  const gaps = rows.flatMap((row, number) => ("gap" in row.dataset ? [number] : []));
  return { names: heads.slice(1, count + 1), data: [times, ...series], gaps };
}

// Where nothing is known, the ground is another one.
function shade(chart, times, gaps) {
  const { ctx, bbox } = chart;
  const step = times.length > 1 ? times[1] - times[0] : 0;
  ctx.fillStyle = colour("--raised");
  for (const number of gaps) {
    const from = Math.max(bbox.left, chart.valToPos(times[number], "x", true));
    const until = Math.min(bbox.left + bbox.width, chart.valToPos(times[number] + step, "x", true));
    if (until > from) ctx.fillRect(from, bbox.top, until - from + 1, bbox.height);
  }
}

// What lies above this line is late.
function mark(chart, threshold) {
  const { ctx, bbox } = chart;
  const y = chart.valToPos(height(threshold), "y", true);
  ctx.save();
  ctx.strokeStyle = colour("--warn");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([8, 6]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

function draw(figure) {
  const plot = figure.querySelector(".plot");
  const { names, data, gaps } = read(figure);
  const threshold = Number(figure.dataset.threshold);
  plot.replaceChildren();
  if (!names.length) return;
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const isUtc = document.querySelector("[data-zone-name]")?.textContent === "UTC";
  const chart = new uPlot({
    width: plot.clientWidth,
    height: 240,
    tzDate: (at) => (isUtc ? uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000)),
    hooks: { drawClear: [(chart) => shade(chart, data[0], gaps)], draw: [(chart) => mark(chart, threshold)] },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_, least, most) => [0, Math.max(height(0.01), height(threshold), most || 0) * 1.05] } },
    axes: [
      { ...axis, size: 34, values: [[86400, "{MM}-{DD}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
      { ...axis, size: 60, splits: () => MARKS.map(height), values: () => MARKS.map(seconds) },
    ],
    series: [
      { label: "from", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
      ...names.map((label, number) => ({
        label,
        stroke: colour(COLOURS[number % COLOURS.length]),
        width: 1.5,
        dash: number % 2 ? [4, 3] : undefined,
        points: { show: false },
        spanGaps: false,
        value: (chart, value, _, at) => (at === null || value === null ? "–" : `≤ ${seconds(data[number + 1][at])}`),
      })),
    ],
  }, [data[0], ...data.slice(1).map((values) => values.map(height))], plot);
  charts.push({ figure, chart });
}

function drawAll() {
  charts.length = 0;
  document.querySelectorAll("[data-chart]").forEach(draw);
}

drawAll();
for (const event of ["tw:theme", "tw:zone"]) document.addEventListener(event, drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("resize", () => {
  for (const { figure, chart } of charts) chart.setSize({ width: figure.querySelector(".plot").clientWidth, height: 240 });
});
