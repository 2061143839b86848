// Plotly: loaded once and late, drawn without its own interaction, drawn again when the panel's size changes.
//
// Charts are static pictures for Plotly. The tooltip, the selection of a range and the keys are in hover.js: they need no inline
// styles, and a static picture is drawn faster.

import { oncePerFrame, readTheme } from './dom.js';

const ADDRESS = new URL('../vendor/plotly.min.js', import.meta.url).href;
const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false, showTips: false };
const CHARACTER = 6.3;
// Plotly writes rules into a <style> element with this id. If there is one with the class below, Plotly takes the rules to be in
// a style sheet of the page. A static chart needs none of them; panels.css has the few that matter.
// The second id is that of the styles for maps: without an element with this id, the file adds a <style> element, which the page's
// content security policy blocks with a message in the console. Maps are not used here.
const STYLE_HOLDERS = ['plotly.js-style-global', '9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53'];

let loading = null;

/** Load Plotly once. Rejects if the file cannot be loaded; the next call tries again. */
export function loadPlotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  loading ??= appendScript().catch((error) => {
    loading = null;
    throw error;
  });
  return loading;
}

function appendScript() {
  STYLE_HOLDERS.forEach(holdStyles);
  return new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = ADDRESS;
    script.onload = () => (window.Plotly ? resolve(window.Plotly) : reject(new Error('the file contains no Plotly')));
    script.onerror = () => {
      script.remove();
      reject(new Error(`${ADDRESS} could not be loaded`));
    };
    document.head.append(script);
  });
}

function holdStyles(id) {
  if (document.getElementById(id)) return;
  const holder = document.createElement('template');
  holder.id = id;
  holder.className = 'no-inline-styles';
  document.head.append(holder);
}

/** Return the margins for these texts on the axes. */
export function marginsFor(leftTexts, rightTexts) {
  const wide = (texts) => Math.ceil(Math.max(0, ...texts.map((text) => text.length)) * CHARACTER);
  return { l: wide(leftTexts) + 12, r: rightTexts.length ? wide(rightTexts) + 12 : 14, t: 8, b: 22, pad: 0 };
}

/** Return an axis for Plotly's layout. */
export function plotAxis(axis, theme, { grid = true, more = {} } = {}) {
  return {
    type: 'linear', range: axis.range, tickmode: 'array', tickvals: axis.ticks, ticktext: axis.texts, automargin: false,
    showgrid: grid, gridcolor: theme.grid, gridwidth: 1, zeroline: false, showline: false, ticks: '', tickangle: 0,
    tickfont: { color: theme.muted, size: 11 }, fixedrange: true, title: { text: '' }, ...more,
  };
}

/** Return the layout that all charts have in common. */
export function baseLayout(theme, size, margin) {
  return {
    width: size.width, height: size.height, margin, autosize: false, showlegend: false, hovermode: false, dragmode: false,
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: { family: theme.font, size: 11, color: theme.text },
    shapes: [], annotations: [],
  };
}

/**
 * Draw a chart into an element and keep it at the element's size.
 *
 * `build(size, theme)` returns {data, layout}. The result has `redraw()`, `size()`, `theme` and `destroy()`. `afterDraw` is
 * called after each drawing.
 */
export async function mountPlot(element, build, afterDraw = () => {}) {
  const Plotly = await loadPlotly();
  const graph = document.createElement('div');
  graph.className = 'pn-graph no-inline-styles';
  element.prepend(graph);
  const plot = { theme: readTheme(element), gone: false };
  plot.size = () => ({ width: Math.max(60, element.clientWidth), height: Math.max(60, element.clientHeight) });
  let drawn = '';
  const draw = () => {
    if (plot.gone) return;
    const size = plot.size();
    drawn = `${size.width}x${size.height}`;
    const { data, layout } = build(size, plot.theme);
    // react() works synchronously for these charts; its promise only reports the end.
    Promise.resolve(Plotly.react(graph, data, layout, CONFIG)).catch((error) => console.error('a chart could not be drawn', error));
    afterDraw(layout);
  };
  const later = oncePerFrame(() => {
    const size = plot.size();
    if (`${size.width}x${size.height}` !== drawn) draw();
  });
  const observer = new ResizeObserver(later.call);
  plot.redraw = draw;
  plot.destroy = () => {
    plot.gone = true;
    observer.disconnect();
    later.cancel();
    Plotly.purge(graph);
    graph.remove();
    element.replaceChildren();
  };
  draw();
  observer.observe(element);
  return plot;
}
