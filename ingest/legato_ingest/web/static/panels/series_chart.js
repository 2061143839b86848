// A chart of several series: its legend, its drawing by Plotly, and what a pointer or a key shows.
//
// The two types of panels with such charts give their model, their figure and what the tooltip says; this module knows no type.

import { reasonWithoutData, readTheme, showMessage } from './dom.js';
import { attachHover } from './hover.js';
import { buildLegend, chartLabel, chartParts, hiddenSeries } from './legend.js';
import { mountPlot } from './plot.js';

/**
 * Draw the chart of a panel, or the reason why there is none. Returns {destroy()}.
 *
 * `modelOf(theme)`: {series, listed, …} or null, where `listed` is the order of the legend if it is another; `parts`: {figure(model, size, theme), hoverOf(model), after(host, model)}, where `after` draws
 * over Plotly's part and may be left out.
 */
export async function drawSeriesChart(element, panel, modelOf, { figure, hoverOf, after }) {
  const model = modelOf(readTheme(element));
  if (!model?.series.length) {
    showMessage(element, reasonWithoutData(panel));
    return { destroy() {} };
  }
  const { root, host } = chartParts(element, chartLabel(panel, model.series));
  model.hidden = hiddenSeries(element, panel, model.series);
  let plot = null;
  const legend = buildLegend(model.listed ?? model.series, model.hidden, () => plot?.redraw());
  if (panel.options?.legend?.showLegend !== false) root.append(legend.element);
  plot = await mountPlot(host, (size, theme) => figure(model, size, theme), after && (() => after(host, model)));
  const hover = attachHover(host, hoverOf(model));
  return {
    destroy() {
      hover.destroy();
      plot.destroy();
    },
  };
}
