#include "check_page.hpp"

namespace moe64::cli::page_parts {

char const* style() {
  return R"(
:root { color-scheme: light dark; --back: #ffffff; --panel: #f5f6f8; --line: #d9dce1; --text: #1b1f24;
  --dim: #5c6570; --bad: #c62828; --warn: #a85b00; --good: #2e7d32; --empty: #e4e7eb; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --panel: #1d2226; --line: #343b42; --text: #e6e9ec; --dim: #9aa4ae;
    --bad: #ff6b6b; --warn: #ffb454; --good: #6fcf76; --empty: #2a3036; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1640px; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 8px; }
.path, td.text, .mono { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
.path { color: var(--dim); margin: 0 0 16px; }
.verdict { display: inline-block; padding: 2px 10px; border-radius: 4px; color: #fff; font-weight: 600; }
.verdict.ok { background: #2e7d32; } .verdict.fail { background: #c62828; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(max(210px, 22%), 1fr)); gap: 10px; margin-top: 14px; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
.tile b { display: block; font-size: 18px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: 13px; }
.tile.bad b { color: var(--bad); }
.controls { display: flex; flex-wrap: wrap; gap: 16px; align-items: center; margin: 8px 0; }
select { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line);
  border-radius: 4px; padding: 3px 6px; }
.map { overflow: auto; max-height: 85vh; border: 1px solid var(--line); border-radius: 6px; background: var(--panel); }
canvas { display: block; }
#tip { position: fixed; display: none; pointer-events: none; background: var(--back); color: var(--text);
  border: 1px solid var(--dim); border-radius: 4px; padding: 6px 9px; font-size: 13px; white-space: pre;
  box-shadow: 0 2px 8px rgba(0,0,0,.3); z-index: 2; font-family: ui-monospace, monospace; }
.hint { color: var(--dim); font-size: 13px; margin: 6px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; font-size: 13px; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.error { color: var(--bad); font-weight: 600; } .warning { color: var(--warn); font-weight: 600; }
.note { color: var(--dim); }
tr.wrong td.n { color: var(--bad); }
summary { cursor: pointer; }
td button { all: unset; cursor: pointer; text-decoration: underline dotted; }
td button:focus-visible { outline: 2px solid var(--dim); }
)";
}

char const* script() {
  return R"(
(function () {
  'use strict';
  var data = JSON.parse(document.getElementById('data').textContent);
  var byId = function (id) { return document.getElementById(id); };
  var canvas = byId('cells'), legend = byId('legend'), tip = byId('tip');
  var part = byId('part'), measure = byId('measure');
  var measures = {
    median: { label: 'median scale', log: true }, max: { label: 'largest scale', log: true },
    amax: { label: 'largest weight (at most)', log: true }, saturated: { label: 'share of saturated codes', log: false }
  };
  var stops = [[68,1,84],[71,44,122],[59,81,139],[44,113,142],[33,144,141],[39,173,129],[92,200,99],[170,220,50],[253,231,37]];
  function colour(t) {
    var x = Math.max(0, Math.min(1, t)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(x)), f = x - i;
    return 'rgb(' + [0, 1, 2].map(function (k) { return Math.round(stops[i][k] + f * (stops[i + 1][k] - stops[i][k])); }).join(',') + ')';
  }
  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function show(v) { return v === 0 ? '0' : Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5 ? String(+v.toPrecision(3)) : v.toExponential(2); }
  function marked(name) {
    return data.layers.reduce(function (sum, layer) {
      return sum + (layer.parts[name] ? layer.parts[name].mark.filter(Boolean).length + layer.parts[name].absent.length : 0);
    }, 0);
  }
  data.parts.forEach(function (p) { var n = marked(p); part.add(new Option(n ? p + ' (' + n + ' framed)' : p, p)); });
  part.value = data.first || data.parts[0];
  Object.keys(measures).forEach(function (m) { measure.add(new Option(measures[m].label, m)); });

  var view = null, chosen = null;
  function rowsOf(name) {
    return data.layers.map(function (layer) {
      var found = layer.parts[name];
      if (!found) return null;
      var cells = new Map();
      found.median.forEach(function (v, i) {
        cells.set(found.experts ? found.experts[i] : i, { median: v, max: found.max[i], amax: found.amax[i],
          saturated: found.saturated[i], nan: found.nan[i] || 0, wrong: found.wrong[i] || 0, mark: found.mark[i] || 0 });
      });
      found.absent.forEach(function (one) { cells.set(one[0], { absent: true, mark: one[1] }); });
      return cells;
    });
  }
  // Colours span all but the outermost half per cent, so that one outlier does not hide the rest.
  function range(rows, key, log) {
    var all = [];
    rows.forEach(function (cells) {
      if (cells) cells.forEach(function (c) { var v = c.absent ? -1 : c[key]; if (log ? v > 0 : v >= 0) all.push(v); });
    });
    all.sort(function (a, b) { return a - b; });
    var at = function (q) { return all[Math.floor(q * (all.length - 1))]; };
    var low = all.length ? at(0.005) : log ? 1 : 0, high = all.length ? at(0.995) : 1;
    var r = { below: all.length > 0 && all[0] < low, above: all.length > 0 && all[all.length - 1] > high };
    if (!log) { low = 0; r.below = false; }
    // differences of a few per cent are no news: they must not look like any
    if (log && high < 4 * low) { var middle = Math.sqrt(low * high); low = middle / 2; high = middle * 2; }
    if (low === high) high = low + (low || 1);
    r.low = low; r.high = high;
    return r;
  }
  function place(v, r, log) {
    return log ? (Math.log(v) - Math.log(r.low)) / (Math.log(r.high) - Math.log(r.low)) : (v - r.low) / (r.high - r.low);
  }
  function size(target, width, height) {
    var ratio = window.devicePixelRatio || 1;
    target.width = Math.round(width * ratio); target.height = Math.round(height * ratio);
    target.style.width = width + 'px'; target.style.height = height + 'px';
    var g = target.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    return g;
  }
  function draw() {
    var m = measures[measure.value], rows = rowsOf(part.value), r = range(rows, measure.value, m.log);
    var columns = Math.max(1, data.columns), left = 58, top = 26;
    var room = byId('map').clientWidth - left - 8;
    var w = Math.max(2, Math.min(28, room / columns)), h = Math.max(9, Math.min(22, Math.floor(900 / Math.max(1, rows.length))));
    if (w > 4) w = Math.floor(w);
    var g = size(canvas, left + Math.ceil(columns * w) + 8, top + rows.length * h + 8);
    var gapX = w > 5 ? 1 : 0, marks = [], bad = {};
    var edge = function (x) { return Math.floor(left + x * w); };
    rows.forEach(function (cells, y) {
      for (var x = 0; cells && x < columns; ++x) {
        var cell = cells.get(x), v = cell && !cell.absent ? cell[measure.value] : -1;
        g.fillStyle = cell && (m.log ? v > 0 : v >= 0) ? colour(place(v, r, m.log)) : css('--empty');
        g.fillRect(edge(x), top + y * h, edge(x + 1) - edge(x) - gapX, h - 1);
        if (cell && cell.mark) { marks.push([x, y, cell.mark]); bad[y] = Math.max(bad[y] || 0, cell.mark); }
      }
    });
    marks.forEach(function (k) {
      var grow = Math.max(0, (9 - w) / 2), x = left + k[0] * w - grow, y = top + k[1] * h - 0.5, width = w - gapX + 2 * grow;
      g.lineWidth = 4; g.strokeStyle = '#ffffff'; g.strokeRect(x, y, width, h);
      g.lineWidth = 2; g.strokeStyle = k[2] > 1 ? '#ff1744' : '#ff9100'; g.strokeRect(x, y, width, h);
    });
    if (chosen) {
      var all = chosen.expert < 0, from = all ? 0 : chosen.expert;
      g.lineWidth = 3; g.strokeStyle = css('--text');
      g.strokeRect(left + from * w - 3, top + chosen.row * h - 3, (all ? columns : 1) * w + 6, h + 5);
    }
    g.font = '11px system-ui, sans-serif'; g.textBaseline = 'middle'; g.textAlign = 'right';
    var step = Math.ceil(12 / h);
    data.layers.forEach(function (layer, y) {
      g.fillStyle = bad[y] ? css(bad[y] > 1 ? '--bad' : '--warn') : css('--dim');
      if (y % step === 0 || bad[y]) g.fillText(layer.name, left - 6, top + y * h + h / 2);
    });
    g.fillStyle = css('--dim');
    g.textAlign = 'center';
    var every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find(function (n) { return n * w >= 38; }) || 1024;
    for (var x = 0; x < columns; x += every) g.fillText(String(x), left + x * w + w / 2, top - 10);
    view = { rows: rows, left: left, top: top, w: w, h: h, columns: columns };
    drawLegend(m, r);
  }
  function drawLegend(m, r) {
    var g = size(legend, 330, 34);
    for (var i = 0; i < 300; ++i) { g.fillStyle = colour(i / 299); g.fillRect(15 + i, 2, 1.5, 12); }
    g.fillStyle = css('--text'); g.font = '11px system-ui, sans-serif'; g.textBaseline = 'top';
    [0, 0.5, 1].forEach(function (t) {
      var v = m.log ? Math.exp(Math.log(r.low) + t * (Math.log(r.high) - Math.log(r.low))) : r.low + t * (r.high - r.low);
      g.textAlign = t === 0 ? 'left' : t === 1 ? 'right' : 'center';
      g.fillText((t === 0 && r.below ? '\u2264 ' : t === 1 && r.above ? '\u2265 ' : '') + show(v), 15 + 300 * t, 18);
    });
  }
  canvas.addEventListener('mousemove', function (event) {
    var box = canvas.getBoundingClientRect();
    var x = Math.floor((event.clientX - box.left - view.left + 0.5) / view.w), y = Math.floor((event.clientY - box.top - view.top) / view.h);
    var cells = x >= 0 && x < view.columns && y >= 0 ? view.rows[y] : null, cell = cells && cells.get(x);
    if (!cells) { tip.style.display = 'none'; return; }
    var layer = data.layers[y], lines = ['layer ' + layer.name + ', expert ' + x + ', ' + part.value + '  (' + layer.dialect + ')'];
    if (!cell || cell.absent) lines.push('not there, or not readable');
    else {
      if (cell.max > 0) lines.push('scale median  ' + show(cell.median), 'scale max     ' + show(cell.max));
      lines.push('weights up to ' + show(cell.amax));
      if (cell.saturated >= 0) lines.push('saturated     ' + show(100 * cell.saturated) + ' %');
      if (cell.nan) lines.push('NaN or infinite: ' + cell.nan);
      if (cell.wrong) lines.push('wrong scales: ' + cell.wrong);
    }
    if (cell && cell.mark) lines.push(cell.mark > 1 ? 'an error was found here' : 'a warning or a note is about this');
    tip.textContent = lines.join('\n');
    tip.style.display = 'block';
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
  });
  canvas.addEventListener('mouseleave', function () { tip.style.display = 'none'; });
  document.querySelectorAll('button[data-row]').forEach(function (button) {
    button.addEventListener('click', function () {
      if (data.parts.indexOf(button.dataset.part) >= 0) part.value = button.dataset.part;
      chosen = { row: Number(button.dataset.row), expert: Number(button.dataset.expert) };
      draw();
      byId('heat').scrollIntoView();
      byId('map').scrollTo(view.left + chosen.expert * view.w - 200, view.top + chosen.row * view.h - 200);
    });
  });
  part.addEventListener('change', draw);
  measure.addEventListener('change', draw);
  window.addEventListener('resize', draw);
  if (window.matchMedia) window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  if (data.parts.length) draw(); else byId('heat').hidden = true;
})();
)";
}

}  // namespace moe64::cli::page_parts
