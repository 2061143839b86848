// The panels of the web page: one function that draws any panel of a Grafana dashboard into an element.
//
// It draws from the panel's JSON and from frames of data that the page has queried. It makes no request but for the chart library.
// Rows of a dashboard are the page's: `row` is not a panel here.

import { drawBarChart } from './barchart.js';
import { showMessage } from './dom.js';
import { drawHeatmap } from './heatmap.js';
import { drawText } from './markdown.js';
import { drawStat } from './stat.js';
import { drawTable } from './table.js';
import { drawTimeSeries } from './timeseries.js';

export { toCsv, toMarkdown } from './export.js';

const PANELS = {
  barchart: drawBarChart,
  heatmap: drawHeatmap,
  stat: drawStat,
  table: drawTable,
  text: drawText,
  timeseries: drawTimeSeries,
};
/** The types of panels that Plotly draws, and those that show their figures without it. */
export const CHARTS = new Set(['barchart', 'heatmap', 'timeseries']);
export const FIGURES = new Set(['stat', 'table']);
// The newest drawing of each element. An earlier one is destroyed, also if it ends later.
const newest = new WeakMap();

/**
 * Draw a panel into an element. Returns {destroy()}, which frees everything and empties the element.
 *
 * A second call for the same element replaces the first drawing, and keeps a table's sort, filter and page and the hidden series.
 *
 * `frames`: one for each target, {columns: [{name, type, values}], rows}. `context`: {span: {from_ms, to_ms}, interval_ms,
 * variables, theme, annotations, href(url), zoom(from_ms, to_ms)}.
 */
export async function drawPanel(element, panel, frames, context) {
  newest.get(element)?.destroy();
  const drawing = { drawn: null, gone: false };
  drawing.destroy = () => {
    drawing.drawn?.destroy();
    [drawing.drawn, drawing.gone] = [null, true];
  };
  newest.set(element, drawing);
  element.classList.add('pn');
  drawing.drawn = await drawOrExplain(element, panel, frames || [], context);
  if (drawing.gone) drawing.destroy();
  return { destroy: () => end(element, drawing) };
}

function end(element, drawing) {
  drawing.destroy();
  if (newest.get(element) !== drawing) return;
  newest.delete(element);
  element.replaceChildren();
}

async function drawOrExplain(element, panel, frames, context) {
  const draw = Object.hasOwn(PANELS, panel.type) ? PANELS[panel.type] : null;
  if (!draw) {
    showMessage(element, `This page cannot draw panels of the type "${panel.type}".`);
    return { destroy() {} };
  }
  try {
    return await draw(element, panel, frames, context);
  } catch (error) {
    console.error(`the panel ${panel.title || panel.type} could not be drawn`, error);
    if (CHARTS.has(panel.type)) return drawWithoutChart(element, panel, frames, context, error);
    showMessage(element, `This panel could not be drawn: ${error.message}`, 'pn-error');
    return { destroy() {} };
  }
}

/** Without a chart, the data are shown as a table, with the reason above it. */
async function drawWithoutChart(element, panel, frames, context, error) {
  const drawn = await drawTable(element, panel, frames, context);
  const reason = document.createElement('p');
  reason.className = 'pn-reason';
  reason.textContent = `The chart could not be drawn (${error.message}). These are its data.`;
  element.prepend(reason);
  return drawn;
}
